"""Who is who in a test cluster: one authority, made by openssl and thrown away with the cluster, and its kubeconfigs.

Kubernetes reads a client's name from its certificate: CN is the user, O the group. P-256 keys, because they are made in
milliseconds.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["Authority"]

DAYS = "2"


@dataclass(frozen=True)
class Authority:
    """A new certificate authority in `folder`: `ca.crt` and `ca.key`; what it issues lies there too."""

    folder: Path

    def __post_init__(self) -> None:
        self.new_key("ca")
        self._openssl(
            *("req", "-x509", "-new", "-key", "ca.key", "-days", DAYS, "-subj", "/CN=test-ca", "-out", "ca.crt"),
            *("-addext", "basicConstraints=critical,CA:true", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def new_key(self, name: str) -> Path:
        """`<name>.key`."""
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
        return self.folder / f"{name}.key"

    def issue_server(self, name: str, *alternative_names: str) -> None:
        """`<name>.crt` and `.key` of a server; names as `IP:127.0.0.1` and `DNS:localhost`."""
        extensions = f"extendedKeyUsage=serverAuth\nsubjectAltName={','.join(alternative_names)}\n"
        self._issue(name, f"/CN={name}", extensions)

    def issue_client(self, name: str, user: str, group: str | None = None) -> None:
        """`<name>.crt` and `.key` of a client."""
        organisation = f"/O={group}" if group else ""
        self._issue(name, f"{organisation}/CN={user}", "extendedKeyUsage=clientAuth\n")

    def issue_kubeconfig(self, name: str, server: str, user: str, group: str | None = None) -> Path:
        """`<name>.kubeconfig` of a new client of the API server at the URL `server`."""
        self.issue_client(name, user, group)
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": server, "certificate-authority": str(self.folder / "ca.crt")}
        client = {
            "client-certificate": str(self.folder / f"{name}.crt"),
            "client-key": str(self.folder / f"{name}.key"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": client}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def _issue(self, name: str, subject: str, extensions: str) -> None:
        self.new_key(name)
        self._openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
        (self.folder / f"{name}.ext").write_text(f"basicConstraints=CA:false\nkeyUsage=digitalSignature\n{extensions}")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", DAYS, "-extfile", f"{name}.ext", "-out", f"{name}.crt"),
        )

    def _openssl(self, *words: str) -> None:
        """Raises AssertionError with openssl's own words."""
        done = subprocess.run(["openssl", *words], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"openssl {' '.join(words)}: {done.stderr}"

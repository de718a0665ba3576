"""docs/gitops.md, from an empty repository to the first rebalancing, and its promotion: every command, run as written.

The addresses are those of a real Gitea, and of a stand-in for Prometheus, which has what ranks recorded. What the page
has a person do at the forge, merging, is done by REST. What it has a person do at a cluster is not done here:
`test_gitops_files.py` holds the file against Flux's definitions.
"""

import pytest

from tests.cluster.pages import Prometheus, Reader, read_blocks, running_prometheus

BLOCKS = read_blocks("gitops.md", "From an empty repository to the first rebalancing")
PROMOTION = read_blocks("gitops.md", "Several environments")


@pytest.fixture
def prometheus():
    """The address of a Prometheus."""
    with running_prometheus() as address:
        yield address


def test_a_newcomer_gets_to_the_first_rebalancing(gitea, prometheus, tmp_path, monkeypatch):
    """The page alone suffices; of its three pull requests the last one has new maps that are worth their restarts."""
    reader = Reader(gitea, tmp_path, "deployments", {"http://prometheus:9090": prometheus})
    texts = [text for _, text in BLOCKS]
    folder = tmp_path / "deployments"
    reader.run(texts[0], tmp_path)
    (folder / "spec.yaml").write_text(texts[1])
    reader.run(texts[2], folder)
    reader.wait_for_push()
    reader.protect_main()
    reader.run(texts[3], folder)
    titles = [reader.merge(1)["title"]]
    reader.run(texts[4], folder)
    reader.run(texts[5], folder)
    titles.append(reader.merge(2)["title"])
    monkeypatch.setattr(Prometheus, "seed", 8)
    told = reader.run(texts[6], folder)

    assert [language for language, _ in BLOCKS] == ["", "yaml", "", "", "", "", ""]
    assert titles == ["deepseek-r1 (deploy): no_restart", "deepseek-r1 (deploy): degraded, restarts 5 units"]
    assert "\nopened " in told
    assert "worth it: " in told
    assert len(gitea.ask("GET", f"{reader.repository}/pulls?state=open")) == 1


def test_a_change_is_promoted(gitea, tmp_path):
    """What dev was given is proposed for stage: its release file and its folder change, and the text is its diff."""
    reader = Reader(gitea, tmp_path, "environments", {})
    folder = tmp_path / "deployments"
    reader.run(BLOCKS[0][1], tmp_path)
    (folder / "deploy").mkdir()
    (folder / "deploy" / "spec.yaml").write_text(BLOCKS[1][1])
    begin, change, promote = (text for _, text in PROMOTION)
    reader.run(begin, folder)
    reader.wait_for_push()
    reader.run(change, folder)
    first = reader.merge(1)
    reader.run(promote, folder)
    second = reader.merge(2)
    names = [each["filename"] for each in gitea.ask("GET", f"{reader.repository}/pulls/2/files?limit=50")]
    release = "deploy/stage.release.yaml"

    assert first["title"] == "deepseek-r1 (deploy/dev): degraded, restarts 4 units"
    assert second["title"] == "deepseek-r1 (deploy/stage): degraded, restarts 4 units"
    assert second["head"]["ref"] == "tidemill/deploy.stage"
    assert "image" in second["body"]
    assert release in names
    assert all(name == release or name.startswith("deploy/stage/") for name in names)

"""The connection to the provider's cluster, made at its first use.

A cluster that cannot be reached is reported once: otherwise twenty objects of a stack would all wait and fail with the
same sentence.
"""

import threading

from stacks.kube.api import Api
from stacks.kube.errors import ProviderError
from stacks.provider.config import ClusterConfig

__all__ = ["Session"]


class Session:
    """The provider's connection to its cluster, shared by all threads."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self.cluster = cluster
        self._lock = threading.Lock()
        self._outcome: Api | ProviderError | None = None
        self._is_reported = False

    def api(self) -> Api:
        """Return the cluster's API.

        If it cannot be reached, raises the reason at the first call, and a short ProviderError at later ones.
        """
        with self._lock:
            reached = self._reach()
            if isinstance(reached, Api):
                return reached
            if self._is_reported:
                raise ProviderError("the cluster was not reached; another resource of this run has the reason")
            self._is_reported = True
            raise reached

    def api_if_reached(self) -> Api | None:
        """Return the cluster's API; None if it cannot be reached. For callers that can do without."""
        with self._lock:
            reached = self._reach()
            return reached if isinstance(reached, Api) else None

    def _reach(self) -> Api | ProviderError:
        if self._outcome is None:
            try:
                api = self.cluster.connect()
                api.require_answer()
                self._outcome = api
            except ProviderError as error:
                self._outcome = error
        return self._outcome

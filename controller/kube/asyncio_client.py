"""`kubernetes_asyncio` with the names that `transport` uses
of `kubernetes.aio`, which came from it.

Kubeflow's SDK demands kubernetes < 36, which has no `aio`.
The older package has no settings for its session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes_asyncio import client
from multidict import CIMultiDict
from yarl import URL

from controller.kube.objects import Body


# the package need not be installed
class Configuration(client.Configuration):  # type: ignore[misc]
    def __init__(
        self,
        client_session_kwargs: dict[str, Any],
        proxy: str | None,
        tls_server_name: str | None,
        ca_cert_data: bytes | None,
    ) -> None:
        super().__init__()
        self.ca_cert_data = ca_cert_data  # this package does not read it
        self.client_session_kwargs = client_session_kwargs
        self.proxy = proxy
        self.tls_server_name = tls_server_name


@dataclass(frozen=True, slots=True)
class RESTResponse:
    response: aiohttp.ClientResponse


class ApiClient(client.ApiClient):  # type: ignore[misc]  # the package need not be installed
    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._unused = self.rest_client.pool_manager
        self.rest_client.pool_manager = aiohttp.ClientSession(
            connector_owner=False, **configuration.client_session_kwargs
        )

    async def call_api(
        self,
        method: str,
        url: URL,
        header_params: CIMultiDict[str],
        body: Body | None,
        _request_timeout: aiohttp.ClientTimeout,
    ) -> RESTResponse:
        response = await self.request(
            method,
            url,
            headers=header_params,
            body=body,
            _preload_content=False,
            _request_timeout=_request_timeout,
        )
        return RESTResponse(response)

    async def close(self) -> None:
        await self._unused.close()
        await super().close()

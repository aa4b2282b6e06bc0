"""Sign-in by an OpenID provider: authorisation code with PKCE, state and nonce.

The protocol is authlib's business (extra `oidc`); ours is who may come in, and as what.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from llmgw.admin.auth import Caller
from llmgw.clock import Clock
from llmgw.config.server import OidcSettings
from llmgw.errors import ConfigError, Problem, RequestError, TransientError
from llmgw.store.tokens import Role

STATE_COOKIE = "llmgw_sign_on"
_PATIENCE_S = 600.0
_MOST_PENDING = 1000
_LEEWAY_S = 60
#: Asymmetric only: with `HS256` or `none` the token would not prove who has made it.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """Somebody who is at the provider now."""

    nonce: str
    verifier: str
    wanted: str  #: page to show afterwards
    until: float  #: monotonic


class SignOn:
    """One provider, and who is on the way to it."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        """Raises ConfigError if authlib is not installed."""
        try:
            self._oauth: Any = importlib.import_module("authlib.integrations.httpx_client")
            self._oidc: Any = importlib.import_module("authlib.oidc.core")
            self._jwt: Any = importlib.import_module("joserfc.jwt")
            self._jwk: Any = importlib.import_module("joserfc.jwk")
            self._refused: Any = importlib.import_module("authlib.common.errors").AuthlibBaseError
            self._forged: Any = importlib.import_module("joserfc.errors").JoseError
        except ModuleNotFoundError:
            message = "needs a package that is not installed; run: pip install 'llmgw-core[oidc]'"
            raise ConfigError("settings", [Problem(path="auth.oidc", message=message)]) from None
        self._settings = settings
        self._clock = clock
        self._pending: dict[str, _Pending] = {}

    async def begin(self, wanted: str) -> tuple[str, str]:
        """Return where the browser must go, and the state that it must bring back.

        Raises TransientError if the provider does not answer.
        """
        now = self._clock.monotonic()
        self._pending = {key: item for key, item in self._pending.items() if item.until > now}
        while len(self._pending) >= _MOST_PENDING:
            del self._pending[next(iter(self._pending))]
        pending = _Pending(
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            wanted=wanted,
            until=now + _PATIENCE_S,
        )
        async with self._client() as client:
            found = await self._metadata(client)
            url, state = client.create_authorization_url(
                found["authorization_endpoint"],
                code_verifier=pending.verifier,
                nonce=pending.nonce,
            )
        self._pending[state] = pending
        return url, state

    async def finish(self, answer: Mapping[str, str], state: str) -> tuple[Caller, str]:
        """Return who has come back, and the page that was wanted.

        answer: the query that the provider sent the browser back with. state: of its cookie.
        Raises RequestError 401 for what proves nothing, 403 for who has no role here.
        """
        pending = self._pending.pop(answer.get("state", ""), None)
        if pending is None or answer.get("state") != state:
            raise _refusal("this sign-in was not begun by this browser, or too long ago: try again")
        if pending.until <= self._clock.monotonic():
            raise _refusal("this sign-in took too long: try again")
        if "code" not in answer:
            raise _refusal(f"the provider refused: {answer.get('error', 'no reason')[:200]}")
        async with self._client() as client:
            found = await self._metadata(client)
            try:
                token = await client.fetch_token(
                    found["token_endpoint"],
                    grant_type="authorization_code",
                    code=answer["code"],
                    code_verifier=pending.verifier,
                )
                keys = (await client.request("GET", found["jwks_uri"], withhold_token=True)).json()
                claims = self._claims(str(token["id_token"]), keys, pending.nonce)
            except (self._refused, self._forged, KeyError, ValueError) as error:
                reason = getattr(error, "error", None) or type(error).__name__
                raise _refusal(f"the provider's answer proves nothing ({reason})") from None
            except httpx.HTTPError as error:
                raise TransientError(f"the OpenID provider does not answer: {error}") from None
        return self._caller(claims), pending.wanted

    def _client(self) -> Any:
        settings = self._settings
        file = settings.client_secret_file
        return self._oauth.AsyncOAuth2Client(
            client_id=settings.client_id,
            client_secret=file.read_text().strip() if file else None,
            token_endpoint_auth_method="client_secret_basic" if file else "none",
            scope=" ".join(settings.scopes),
            redirect_uri=f"{settings.page_url}/admin/oidc/callback",
            code_challenge_method="S256",
            timeout=10.0,
        )

    async def _metadata(self, client: Any) -> Mapping[str, Any]:
        url = f"{self._settings.issuer}/.well-known/openid-configuration"
        try:
            found: Mapping[str, Any] = (
                await client.request("GET", url, withhold_token=True)
            ).json()
        except (httpx.HTTPError, ValueError) as error:
            raise TransientError(f"the OpenID provider does not answer: {error}") from None
        if str(found.get("issuer", "")).rstrip("/") != self._settings.issuer:
            raise _refusal("the OpenID provider says that it is another one than auth.oidc.issuer")
        return found

    def _claims(self, token: str, keys: object, nonce: str) -> Mapping[str, Any]:
        decoded = self._jwt.decode(
            token, self._jwk.KeySet.import_key_set(keys), algorithms=list(_ALGORITHMS)
        )
        issuer = self._settings.issuer
        claims: Any = self._oidc.CodeIDToken(
            decoded.claims,
            decoded.header,
            options={
                "iss": {"essential": True, "values": [issuer, f"{issuer}/"]},
                "aud": {"essential": True, "value": self._settings.client_id},
                "nonce": {"essential": True, "value": nonce},
            },
            params={"nonce": nonce, "client_id": self._settings.client_id},
        )
        claims.validate(now=int(self._clock.wall()), leeway=_LEEWAY_S)
        found: Mapping[str, Any] = claims
        return found

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        settings = self._settings
        name = str(claims.get(settings.name_claim) or claims["sub"])[:200]
        said = claims.get(settings.roles_claim, ())
        values = [said] if isinstance(said, str) else [str(value) for value in said or ()]
        roles = [Role(settings.roles[value]) for value in values if value in settings.roles]
        if not roles:
            raise RequestError(
                f"{name} has no role here; auth.oidc.roles says which {settings.roles_claim} do",
                status=403,
                code="forbidden",
                kind="permission_error",
            )
        return Caller(name=name, role=max(roles, key=lambda role: role.rank))


def _refusal(message: str) -> RequestError:
    return RequestError(message, status=401, code="unauthorized", kind="authentication_error")

"""The page's routes: sign-in, pages, forms, and the files that they use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote

import anyio.to_thread
import jinja2
from starlette.background import BackgroundTask
from starlette.requests import Request as HttpRequest
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from llmgw.admin.audit import record_change
from llmgw.admin.auth import Authenticator, Caller
from llmgw.admin.operations import (
    Call,
    Changed,
    NoQuery,
    Operation,
    read_body,
    read_json,
    validated,
)
from llmgw.admin.pages import texts
from llmgw.admin.pages.actions import ACTIONS, Action
from llmgw.admin.pages.playground import ChatRequest, chat
from llmgw.admin.pages.sessions import COOKIE, LIFETIME_S, Sessions
from llmgw.admin.pages.signon import STATE_COOKIE, SignOn
from llmgw.admin.pages.views import VIEWS, View
from llmgw.admin.parts import AdminParts
from llmgw.admin.replies import error_response, status_of
from llmgw.domain.secret import Secret
from llmgw.errors import LlmgwError, RequestError
from llmgw.logs import get_logger
from llmgw.store.tokens import Role

log = get_logger(__name__)

ROOT = "/admin"
_HERE = Path(__file__).parent.parent
_STATIC = {
    "app.css": "text/css",
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "live.js": "text/javascript",
    "playground.js": "text/javascript",
    "NOTICE.txt": "text/plain",
}

Endpoint = Callable[[HttpRequest], Awaitable[Response]]


def page_routes(parts: AdminParts, authenticator: Authenticator) -> list[Route]:
    """Return all routes of the page, below `/admin`."""
    site = _Site(parts, authenticator)
    routes = [
        Route("/", _to_overview),
        Route(f"{ROOT}/", site.page(VIEWS[0])),
        Route(f"{ROOT}/sign-in", site.sign_in, methods=["GET", "POST"]),
        Route(f"{ROOT}/sign-out", site.sign_out, methods=["POST"]),
        Route(f"{ROOT}/oidc", site.go_to_provider),
        Route(f"{ROOT}/oidc/callback", site.come_from_provider),
        Route(f"{ROOT}/static/{{name}}", _static),
    ]
    routes.append(Route(f"{ROOT}/playground", site.chat, methods=["POST"]))
    routes += [Route(ROOT + view.path, site.page(view), methods=["GET"]) for view in VIEWS]
    routes += [Route(ROOT + item.path, site.form(item), methods=["POST"]) for item in ACTIONS]
    return routes


class _Site:
    """What all pages share."""

    def __init__(self, parts: AdminParts, authenticator: Authenticator) -> None:
        self._parts = parts
        self._authenticator = authenticator
        self._sessions = Sessions()
        self._sign_on = SignOn(parts.oidc, parts.clock) if parts.oidc else None
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "age": texts.age,
            "moment": texts.moment,
            "mib": texts.mib,
            "blank": texts.blank,
            "number": texts.number,
            "harmless": texts.harmless,
            "spelled": texts.spelled,
        }

    def page(self, view: View) -> Endpoint:
        """Return what answers for a view."""

        async def show(request: HttpRequest) -> Response:
            caller = await self._caller(request)
            if caller is None:
                wanted = quote(request.url.path)
                return RedirectResponse(f"{ROOT}/sign-in?next={wanted}", 303)
            try:
                call = self._call(request, caller, view.role)
                shown = await view.load(call)
            except LlmgwError as error:
                return await self._problem(error, caller)
            if isinstance(shown, Response):
                return shown
            return await self._render(view.template, caller, title=view.title, **shown)

        return show

    def form(self, action: Action) -> Endpoint:
        """Return what answers for a form: the API's own operation, then a page."""

        async def act(request: HttpRequest) -> Response:
            caller = await self._caller(request)
            if caller is None:
                return RedirectResponse(f"{ROOT}/sign-in", 303)
            operation = action.operation
            try:
                _refuse_without_origin(request)
                call = self._call(request, caller, operation.role or Role.ADMIN)
                if operation.body is not None:
                    body = validated(operation.body, action.body(await _form(request)), "form")
                    call = replace(call, body=body)
                parts = {name: quote(str(value)) for name, value in request.path_params.items()}
                onward = RedirectResponse(ROOT + action.back.format_map(parts), 303)
                if action.is_long:
                    onward.background = BackgroundTask(self._work, operation, call)
                    return onward
                answer = await operation.handler(call)
            except LlmgwError as error:
                return await self._problem(error, caller)
            if isinstance(answer, Changed):
                await record_change(self._parts, caller.name, answer)
                if (secret := getattr(answer.reply, "secret", None)) is not None:
                    return await self._render("secret", caller, title="A new key", secret=secret)
            return onward

        return act

    async def _work(self, operation: Operation, call: Call) -> None:
        """Do what takes minutes; `Jobs` shows that it runs and how it ends."""
        try:
            answer = await operation.handler(call)
        except LlmgwError as error:
            log.warning("work of an operator failed", what=operation.summary, reason=str(error))
        else:
            if isinstance(answer, Changed):
                await record_change(self._parts, call.caller.name, answer)

    async def chat(self, request: HttpRequest) -> Response:
        """Answer the playground's script: a stream, or an error as the API has it."""
        try:
            caller = await self._caller(request)
            if caller is None:
                raise RequestError("sign in again", status=401, code="unauthorized")
            _refuse_without_origin(request)
            call = self._call(request, caller, Role.OPERATOR)
            return await chat(replace(call, body=await read_json(ChatRequest, request)))
        except LlmgwError as error:
            return error_response(error)

    async def sign_in(self, request: HttpRequest) -> Response:
        """Ask for a token; begin a session for a good one."""
        wanted = _own_path(request.query_params.get("next"))
        if request.method in ("GET", "HEAD"):
            return await self._render("sign_in", None, title="Sign in", next=wanted, problem="")
        form = await _form(request)
        token, wanted = form.get("token", "").strip(), _own_path(form.get("next"))
        address = request.client.host if request.client else ""
        try:
            await self._authenticator.caller(f"Bearer {token}", address=address)
        except RequestError as error:
            problem = "The token is not valid." if error.status == 401 else str(error)
            return await self._render(
                "sign_in", None, status=error.status, title="Sign in", next=wanted, problem=problem
            )
        return self._begin(request, Secret(token), RedirectResponse(wanted, 303))

    async def go_to_provider(self, request: HttpRequest) -> Response:
        """Send the browser to the OpenID provider."""
        if self._sign_on is None:
            return RedirectResponse(f"{ROOT}/sign-in", 303)
        try:
            url, state = await self._sign_on.begin(_own_path(request.query_params.get("next")))
        except LlmgwError as error:
            return await self._not_signed_in(error)
        response = RedirectResponse(url, 303)
        self._set_cookie(response, request, STATE_COOKIE, state, "lax")
        return response

    async def come_from_provider(self, request: HttpRequest) -> Response:
        """Begin a session for whom the provider names."""
        if self._sign_on is None:
            return RedirectResponse(f"{ROOT}/sign-in", 303)
        try:
            caller, wanted = await self._sign_on.finish(
                dict(request.query_params), request.cookies.get(STATE_COOKIE, "")
            )
        except LlmgwError as error:
            return await self._not_signed_in(error)
        page = await self._render("signed_in", None, title="Signed in", next=wanted)
        # No redirect: this request began at another site, and a strict cookie would stay out.
        page.headers["refresh"] = f"0; url={wanted}"
        page.delete_cookie(STATE_COOKIE, path=ROOT)
        return self._begin(request, caller, page)

    def _begin(self, request: HttpRequest, who: Secret | Caller, response: Response) -> Response:
        ident = self._sessions.open(who, self._parts.clock.monotonic())
        self._set_cookie(response, request, COOKIE, ident, "strict")
        return response

    def _set_cookie(
        self,
        response: Response,
        request: HttpRequest,
        name: str,
        value: str,
        site: Literal["lax", "strict"],
    ) -> None:
        response.set_cookie(
            name,
            value,
            max_age=int(LIFETIME_S),
            path=ROOT,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite=site,
        )

    async def _not_signed_in(self, error: LlmgwError) -> Response:
        return await self._render(
            "sign_in",
            None,
            status=status_of(error),
            title="Sign in",
            next=ROOT,
            problem=str(error),
        )

    async def sign_out(self, request: HttpRequest) -> Response:
        """End the session."""
        self._sessions.close(request.cookies.get(COOKIE, ""))
        response = RedirectResponse(f"{ROOT}/sign-in", 303)
        response.delete_cookie(COOKIE, path=ROOT)
        return response

    async def _caller(self, request: HttpRequest) -> Caller | None:
        ident = request.cookies.get(COOKIE, "")
        who = self._sessions.who(ident, self._parts.clock.monotonic())
        if who is None or isinstance(who, Caller):
            return who
        # The token again, not what it was worth then: it may have been revoked since.
        return await self._authenticator.find(who.reveal())

    def _call(self, request: HttpRequest, caller: Caller, role: Role) -> Call:
        if not caller.may(role):
            raise RequestError(
                f"this needs the role {role.value}; your token has {caller.role.value}", status=403
            )
        return Call(
            parts=self._parts,
            caller=caller,
            authenticator=self._authenticator,
            request=request,
            query=NoQuery(),
            body=None,
        )

    async def _problem(self, error: LlmgwError, caller: Caller) -> Response:
        return await self._render(
            "problem",
            caller,
            status=status_of(error),
            title="That did not work",
            problem=str(error),
        )

    async def _render(
        self, template: str, caller: Caller | None, *, status: int = 200, **shown: object
    ) -> Response:
        values = {
            "menu": [view for view in VIEWS if view.in_menu],
            "caller": caller,
            "may_operate": caller is not None and caller.may(Role.OPERATOR),
            "may_own": caller is not None and caller.may(Role.ADMIN),
            "now": self._parts.clock.wall(),
            "server": self._parts.server,
            "has_provider": self._sign_on is not None,
            **shown,
        }
        # A list of thousands takes a tenth of a second, in which heartbeats would wait.
        page = self._templates.get_template(f"{template}.html")
        return HTMLResponse(await anyio.to_thread.run_sync(page.render, values), status)


def _refuse_without_origin(request: HttpRequest) -> None:
    # A foreign one never comes this far (`guard`); a browser always sends one with a POST.
    if request.headers.get("origin") is None:
        raise RequestError("this was not sent by a page of this server", status=403)


async def _to_overview(_request: HttpRequest) -> Response:
    return RedirectResponse(ROOT, 303)


async def _static(request: HttpRequest) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return Response(status_code=404)
    return FileResponse(
        _HERE / "static" / name,
        media_type=_STATIC[name],
        headers={"cache-control": "max-age=3600"},
    )


async def _form(request: HttpRequest) -> dict[str, str]:
    body = await read_body(request)
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _own_path(path: str | None) -> str:
    """Return where to go after signing in: a page of ours, whatever was asked for."""
    is_ours = path is not None and (path == ROOT or path.startswith(f"{ROOT}/"))
    return path if path is not None and is_ours and "\\" not in path else ROOT

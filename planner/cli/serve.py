"""What does `planner serve` do? A page on this machine where one changes the question and sees the plan change.

The page asks for the answer with the question in the address, so an answer can be linked to. It reaches models,
clusters and stacks that planner ships, and clusters in shorthand, but no file. Left out: what stands on the page
(`report/page`), and users: whoever reaches the port can ask.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from planner.ask.option import Option, options_of
from planner.ask.question import Question, Request
from planner.cli.options import CalibrationOption
from planner.cli.report import MOST_CELLS, MOST_RANKS, drawn_plan_page
from planner.dialect import in_words, only, option
from planner.errors import InputError, PlannerError, UnknownNameError, install_hint

if TYPE_CHECKING:
    from planner.spec.planfile import Plan

EPILOG = "\b\nExamples:\n  planner serve --port 8765\n  planner serve --calibration ours.yaml"
OPTIONS: Final = {name: one for name, one in options_of(Question).items() if not one.reader.is_file}
FIELDS: Final = {
    name: one.shown for name, one in OPTIONS.items()
}  # of the form -> as they are called on the page
ASKED_FIRST: Final = {"model": "llama-3.1-70b", "cluster": "dgx-h100", "gpus": "512", "tokens": "15T"}
LONGEST: Final = 200  # characters of a field
AT_ONCE: Final = 2  # answers computed at the same time
KEPT: Final = 64  # answers
WAITING: Final = 16  # questions that wait for their turn; more are told to come again
_FOREIGN: Final = ("cross-site", "same-site")  # another page asks (Sec-Fetch-Site)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}  # fmt: skip
_MISSING: Final = "planner serve needs starlette, uvicorn and the libraries that draw charts"

HostOption = Annotated[
    str, typer.Option(help="Address to listen on; others than loopback are open to the network.")
]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]


def serve(
    host: HostOption = "127.0.0.1", port: PortOption = 8765, calibration: CalibrationOption = None
) -> int:
    """Serve an interactive planning page. Change model, cluster, size, sequence and batch and see the plan change."""
    file = str(calibration) if calibration is not None else None
    if file is not None:
        from planner.catalog.load_overlay import load_overlay

        load_overlay(file)  # a bad file is told before the page is there
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ModuleNotFoundError:
        raise InputError(_MISSING, hint=install_hint("serve")) from None
    from planner.report.html import chart_library

    listening = _listen(host, port)
    chart_library()  # slow, and better before the page is there than after
    shown = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"planner is at http://{shown}:{listening.getsockname()[1]}  (Ctrl-C ends it)\n")
    if not is_loopback(host):
        sys.stderr.write("anyone who reaches this address can use it: there is no password\n")
    config = uvicorn.Config(web_app(host, file), log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])
    return 0


def is_loopback(host: str) -> bool:
    """Is it an address that this machine alone reaches, however it is written?"""
    bare = host.strip().strip("[]").lower()
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        pass
    try:  # 127.1 is 127.0.0.1
        return ipaddress.ip_address(socket.inet_aton(bare)).is_loopback
    except OSError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    if not host.strip():
        raise InputError(
            "--host must be an address", "nothing", "leave it out, or write --host 0.0.0.0 for all"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        must = "the port must be free" if taken else "the host must be an address of this machine"
        hint = (
            "add --port 0 for any free port" if taken else "leave --host out, or write --host 0.0.0.0 for all"
        )
        raise InputError(must, f"{host}:{port}: {error.strerror or error}", hint) from None
    return listening


def asked(query: Mapping[str, str], calibration: str | None = None) -> Request:
    """The question in an address. Raises `PlannerError`; never reads a file that planner does not ship, but the
    calibration of the server's own command line, which holds for one stack on one device."""
    from planner.catalog.load_stacks import shipped_stack
    from planner.catalog.several_stacks import ANY, BETWEEN
    from planner.spec.load_loads import zipf_exponent
    from planner.spec.load_model import catalog_models, resolve_catalog_name
    from planner.spec.machine.load_cluster import names_no_file, names_of_clusters

    given = {key: query[key].strip() for key in FIELDS if query.get(key, "").strip()}
    for key, text in given.items():
        if len(text) > LONGEST or not text.isprintable():
            raise InputError(f"{key} must be a line of at most {LONGEST} characters")
    model, cluster, stack = given.get("model", ""), given.get("cluster", ""), given.get("stack")
    if model.startswith((".", "/", "~")) or resolve_catalog_name(model) is None:
        raise UnknownNameError("model", model, catalog_models())
    if not names_no_file(cluster):
        raise UnknownNameError("cluster", cluster, names_of_clusters())
    for name in (stack or "").split(BETWEEN):
        if stack is not None and name.lower() != ANY:
            shipped_stack(name)
    if (loads := given.get("expert_loads")) is not None and zipf_exponent(loads) is None:
        raise InputError(
            f"{option('expert_loads')} of the page must be a distribution",
            loads,
            "write balanced, or zipf:0.6, say",
        )
    said: dict[str, Any] = {"model": "", "cluster": "", "calibration": calibration, **given}
    return Request(**said)


def _as_field(name: str, value: str) -> str:
    """An option as the form has it."""
    return f"{FIELDS[name]}: {value}" if value else FIELDS[name]


ON_PAGE: Final = only(FIELDS, _as_field)


def _file(calibration: str | None) -> Path | None:
    return Path(calibration) if calibration is not None else None


@lru_cache(maxsize=KEPT)
def _answer(question: tuple[tuple[str, str], ...], calibration: str | None) -> Plan:
    from planner.answer.plan import make_plan
    from planner.report.words import worded

    return worded(make_plan(asked(dict(question), calibration)), ON_PAGE)


def answer(query: Mapping[str, str], calibration: str | None = None) -> Plan:
    """The plan for the question in an address, remembered. Raises `PlannerError`."""
    return _answer(tuple((key, query.get(key, "")) for key in FIELDS), calibration)


def _computed(calibration: str | None) -> dict[str, Callable[[Mapping[str, str]], Any]]:
    """Path -> what computes its response from the query."""
    from starlette.responses import JSONResponse, Response

    def plan(query: Mapping[str, str]) -> Response:
        return Response(plan_json(query, calibration), media_type="application/json")

    def pipeline(query: Mapping[str, str]) -> Response:
        return JSONResponse({"drawing": pipeline_drawing(query, calibration)})

    def file(query: Mapping[str, str]) -> Response:
        from planner.spec.load_plan import plan_json as plan_text

        return Response(
            plan_text(answer(query, calibration)),
            media_type="application/json",
            headers=_attached("plan.json"),
        )

    def report(query: Mapping[str, str]) -> Response:
        from planner.report.html import page_html

        return Response(
            page_html(drawn_plan_page(answer(query, calibration), query.get("cluster"), _file(calibration))),
            media_type="text/html",
            headers=_attached("report.html"),
        )

    return {"/api/plan": plan, "/api/pipeline": pipeline, "/plan.json": file, "/report.html": report}


def web_app(host: str = "127.0.0.1", calibration: str | None = None) -> Any:
    """The application; on a loopback address it answers only when it is called by such a one, and no other page."""
    import anyio
    from starlette.applications import Starlette
    from starlette.requests import Request as Call
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    turns: list[anyio.Semaphore] = []
    waiting = 0

    async def worked(work: Callable[[Mapping[str, str]], Response], call: Call) -> Response:
        nonlocal waiting
        if _is_foreign(call.headers):
            return Response("another page must not ask", status_code=403)
        if not turns:
            turns.append(anyio.Semaphore(AT_ONCE))
        if waiting >= WAITING:
            return Response("too many questions wait", status_code=503, headers={"Retry-After": "10"})
        waiting += 1
        try:
            await turns[0].acquire()
        finally:
            waiting -= 1
        try:
            if await call.is_disconnected():
                return Response(status_code=499)
            return await anyio.to_thread.run_sync(work, call.query_params)
        except PlannerError as error:
            error.say_in(ON_PAGE)
            # a question that cannot be answered is an answer: a browser would call 400 a failure of the page
            status = 200 if call.url.path.startswith("/api/") else 400
            return JSONResponse(
                {"problem": {"must": error.must, "given": error.given, "hint": error.hint}}, status
            )
        finally:
            turns[0].release()

    def computed(work: Callable[[Mapping[str, str]], Response]) -> Callable[[Call], Awaitable[Response]]:
        async def answered(call: Call) -> Response:
            return await worked(work, call)

        return answered

    def fixed(content: Callable[[], str], kind: str) -> Callable[[Call], Awaitable[Response]]:
        async def sent(call: Call) -> Response:
            return Response(content(), media_type=kind)

        return sent

    from planner.report import html

    routes = [
        Route("/", fixed(form_page, "text/html")),
        Route("/library.js", fixed(html.chart_library, "text/javascript")),
        Route("/page.js", fixed(lambda: html.page_file("page.js"), "text/javascript")),
        Route("/serve.js", fixed(lambda: html.page_file("serve.js"), "text/javascript")),
        Route("/page.css", fixed(lambda: html.page_file("page.css"), "text/css")),
        *(Route(path, computed(work)) for path, work in _computed(calibration).items()),
    ]
    return _Guarded(Starlette(routes=routes), is_loopback(host))


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Does the page of another site ask? Browsers say so; what is no browser says nothing."""
    origin = headers.get("origin")
    other = origin is not None and origin.partition("://")[2] != headers.get("host", "")
    return other or headers.get("sec-fetch-site") in _FOREIGN


def _attached(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


class _Guarded:
    """An application whose every answer carries the headers that keep a browser from trusting more than it must.

    `loopback`: it answers only who calls it by an address of this machine, so that no name that is made to point to it
    (DNS rebinding) does.
    """

    def __init__(self, app: Any, loopback: bool) -> None:
        self.app, self.loopback = app, loopback

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"], *((k.lower().encode(), v.encode()) for k, v in _HEADERS.items())
                ]  # fmt: skip
            await send(message)

        if self.loopback and scope["type"] == "http" and not is_loopback(_host_of(scope["headers"])):
            await guarded({"type": "http.response.start", "status": 400, "headers": []})
            await guarded({"type": "http.response.body", "body": b"Invalid host header"})
            return
        await self.app(scope, receive, guarded)


def _host_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The name by which a call asks, without its port."""
    host = next((value.decode("latin-1") for name, value in headers if name == b"host"), "")
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def plan_json(query: Mapping[str, str], calibration: str | None = None) -> str:
    """The answer as a piece of the page and the charts in it."""
    import json

    from planner.report.html import chart_json, page_fragment
    from planner.report.page import plan_page

    found = answer(query, calibration)
    drawn = found.choices and found.choices[0].config.pp > 1
    page = plan_page(found, '<div id="passes">drawing the passes ...</div>' if drawn else "")
    head = json.dumps({"page": page_fragment(page, ON_PAGE), "title": page.title})
    return head.removesuffix("}") + ', "charts": ' + chart_json(page) + "}"


def pipeline_drawing(query: Mapping[str, str], calibration: str | None = None) -> str:
    """The passes of the best configuration as an SVG; empty where there is no pipeline."""
    from planner.cli.trace import traced_step
    from planner.report.timeline import timeline_svg

    found = answer(query, calibration)
    if not found.choices or found.choices[0].config.pp == 1:
        return ""
    timeline = traced_step(found, 0, None, query.get("cluster"), _file(calibration)).timeline
    return timeline_svg(timeline, "one step of the pipeline, in seconds", MOST_RANKS, MOST_CELLS)


def form_page() -> str:
    """The page before its first answer: the form, with the names that planner knows."""
    from planner.report.html import rendered

    fields = [
        {
            "name": name, "label": one.shown, "wide": one.label.wide, "flag": one.reader.flag, "first": one.label.first,
            "empty": one.label.empty or _usual(one), "required": one.required, "value": ASKED_FIRST.get(name, ""),
            "names": [*map(str, one.names())] if one.names else [], "help": in_words(one.help, ON_PAGE),
        }
        for name, one in OPTIONS.items()
    ]  # fmt: skip
    return rendered("serve.html.j2", fields=fields)


def _usual(one: Option[Any, Any]) -> str:
    """What stands in an empty field: the usual value."""
    return "" if one.default in (None, (), "", False) or one.reader.many else str(one.written(one.default))

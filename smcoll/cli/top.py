"""``smcoll top``: where the ranks of a running job are, and who waits for whom."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Annotated

import psutil
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from smcoll.cli import attach, options
from smcoll.cli.output import wide_console
from smcoll.cli.page import announce
from smcoll.cli.words import counted
from smcoll.sync.observation import RankView, as_record, missing, summary

SAMPLE_SECONDS = 0.5
_STYLES = {"dead": "bold red", "gave up": "red", "waiting": "yellow", "left": "dim"}


def top_command(
    pids: Annotated[list[int] | None, typer.Argument(
        metavar="[PID]...", show_default="every job of this machine",
        help="A rank, or the mpiexec above the ranks.")] = None,
    watch: Annotated[float, typer.Option(
        min=0, metavar="SECONDS", show_default=False, rich_help_panel=options.SHOWN,
        help="Look again and again, until Ctrl-C or the end.")] = 0,
    as_json: Annotated[bool, typer.Option(
        "--json", metavar=options.FLAG, show_default=False, rich_help_panel=options.SHOWN,
        help="JSON on standard output.")] = False,
    stacks: Annotated[bool, typer.Option(
        metavar=options.FLAG, show_default="on", rich_help_panel=options.SHOWN,
        help="Python stacks of who is waited for (py-spy).")] = True,
) -> None:
    """Show where the ranks of a running job are, and who waits for whom.

    Reads the job's shared memory from outside, so it works on ranks that
    hang, are stopped or dead. Shows communicators whose segment has been
    made; those that use MPI wholly have none.
    """
    try:
        attached = attach.attach(attach.processes_of(pids or []))
    except psutil.Error as error:
        raise typer.BadParameter(str(error)) from None
    if not attached:
        typer.echo("smcoll: no communicator of smcoll's in " + (
            f"process {', '.join(map(str, pids))} or below" if pids
            else "the processes that this user may look at"), err=True)
        raise typer.Exit(1)
    if watch:
        _show_again_and_again(records(pids or [], attached, watch), as_json)
        return
    if not as_json:
        announce(wide_console(), f"Looking at {counted(len(attached), 'communicator')} from "
                 "outside", SAMPLE_SECONDS)
    record = look(attached, SAMPLE_SECONDS, stacks)
    if as_json:
        typer.echo(json.dumps(record, indent=1))
    else:
        wide_console().print(render(record))


def _show_again_and_again(shown: Iterator[dict], as_json: bool) -> None:
    console = wide_console()
    try:
        if as_json:
            for record in shown:
                typer.echo(json.dumps(record))
        elif console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for record in shown:
                    live.update(render(record), refresh=True)
        else:
            for record in shown:
                console.print(render(record))
    except KeyboardInterrupt:
        return


def records(pids: list[int], attached: list[attach.Attached], seconds: float) -> Iterator[dict]:
    """A record every ``seconds``, also of communicators made meanwhile, until none is left."""
    pause = min(seconds, SAMPLE_SECONDS)  # the first one soon
    while (record := look(attached, pause, False))["communicators"]:
        yield record
        pause = seconds
        attached = _without_ended(attached)
        # One of several jobs may have ended: the others' communicators are watched on.
        with contextlib.suppress(psutil.Error):
            attached = attach.attach(attach.processes_of(pids), attached)


def _without_ended(attached: list[attach.Attached]) -> list[attach.Attached]:
    """Let go of communicators that no rank has any more: a descriptor keeps their memory."""
    alive = [mapping for mapping in attached if any(view.alive for view in mapping.look())]
    for mapping in attached:
        if mapping not in alive:
            mapping.close()
    return alive


def look(attached: list[attach.Attached], seconds: float, stacks: bool) -> dict:
    """Two looks, ``seconds`` apart, as a record; communicators that have ended are left out."""
    before = [mapping.look() for mapping in attached]
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    return {"communicators": [
        communicator(mapping, old, elapsed, stacks)
        for mapping, old in zip(attached, before, strict=True)
        if any(view.alive for view in old)]}


def communicator(mapping: attach.Attached, before: list[RankView], elapsed: float,
                 stacks: bool) -> dict:
    """One communicator's part of the record."""
    views = mapping.look()
    ranks = []
    for old, view in zip(before, views, strict=True):
        kernel = attach.process_state(view.pid)
        words = view.in_words()
        if kernel == psutil.STATUS_STOPPED:
            words = f"stopped, {words}"
        ranks.append(as_record(view) | {
            "process": kernel, "words": words,
            "calls_per_second": round((view.call - old.call) / elapsed, 1)})
    record = {"name": mapping.observation.title, "segment": mapping.name, "size": len(views),
              "ranks": ranks, "summary": summary(views)}
    if stacks:
        found = {view.rank: attach.python_stack(view.pid) for view in missing(views)}
        record["stacks"] = {rank: text for rank, text in found.items() if text}
    return record


def render(record: dict) -> Group:
    """Tables for the eye."""
    parts: list = []
    for one in record["communicators"]:
        title = one["name"] or f"a communicator without a name, {one['segment']}"
        table = Table(title=Text(f"{title}: {one['size']} ranks"), title_justify="left")
        for name in ("rank", "pid", "call", "what", "calls/s", "state"):
            table.add_column(name, justify="left" if name in ("what", "state") else "right")
        for rank in one["ranks"]:
            style = "bold red" if "stopped" in rank["words"] else _STYLES.get(rank["state"], "")
            table.add_row(str(rank["rank"]), str(rank["pid"] or "-"), str(rank["call"]),
                          rank["what"], f"{rank['calls_per_second']:g}",
                          Text(rank["words"], style=style))
        parts.append(table)
        if one["summary"]:
            parts.append(Text(one["summary"]))
        for rank, stack in one.get("stacks", {}).items():
            parts.append(Text(f"Python stack of rank {rank}:\n{stack}"))
    return Group(*parts)

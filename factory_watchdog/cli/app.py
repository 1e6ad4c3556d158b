"""The command line. Each command is a file beside this one, imported when it is called: `check` must start fast."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

CONFIG = Path("/etc/factory-watchdog/config.toml")

app = typer.Typer(
    name="llm-health",
    help="A watchdog for language-model servers: looks without asking, restarts only what is proven hung.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Look at the configuration file.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="Configuration file.", metavar="FILE")]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines: JSON.")]


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Faults are told in one line each, a fault of the program with its traceback."""
    fault: BaseException
    try:
        code = _called(arguments)(list(arguments), standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # the last line of defence
        fault = error
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        fault = ended.__context__  # typer ends the program where the reader of our output has gone
    else:
        return code if isinstance(code, int) else 0
    from factory_watchdog.cli import faults

    return faults.tell(fault, arguments, _commands())


def _called(arguments: Sequence[str]) -> typer.Typer:
    """The app with the called command alone: typer builds all that it has, which takes a check 5 ms of CPU.

    The whole app where the first argument is no command: then it has to list them, or to say which is like it.
    """
    called = [command for command in app.registered_commands if _name(command) in arguments[:1]]
    if not called:
        return app
    only = copy.copy(app)
    only.registered_commands, only.registered_groups = called, []
    return only


def _commands() -> set[str]:
    """The names of all commands and groups."""
    return {*map(_name, app.registered_commands), *(group.name or "" for group in app.registered_groups)}


def _name(command: typer.models.CommandInfo) -> str:
    return str(command.name or getattr(command.callback, "__name__", ""))


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"llm-health {version('factory-watchdog')}\n")
        raise typer.Exit


@app.callback()
def _main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(config: ConfigOption = CONFIG) -> None:
    """Watch every backend of the configuration until stopped. Exits 78 on a bad file."""
    from factory_watchdog.cli import run as command

    raise typer.Exit(command.run(config))


@app.command()
def check(
    targets: Annotated[list[str] | None, typer.Argument(metavar="[NAME|URL]...", help="Default: all backends.")] = None,
    config: ConfigOption = CONFIG,
    wait: Annotated[bool, typer.Option("--wait", help="Watch until nothing is suspect any more.")] = False,
    purpose: Annotated[
        str, typer.Option("--for", metavar="liveness|readiness|startup", help="For an exec probe: 0 or 1 in 0.8 s.")
    ] = "",
    as_json: JsonOption = False,
    state_file: Annotated[
        Path | None, typer.Option("--state-file", metavar="FILE", help="What a look without a daemon remembers.")
    ] = None,
) -> None:
    """Say how backends are: asks the daemon, or looks by itself. Exits 0 fine, 1 warning, 2 hung or dead, 3 unknown."""
    from factory_watchdog.cli import check as command

    raise typer.Exit(command.check(targets or [], config, wait=wait, purpose=purpose, as_json=as_json, file=state_file))


@app.command()
def history(
    name: Annotated[str | None, typer.Argument(help="One backend; default: all.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Newest entries shown.")] = 30,
    config: ConfigOption = CONFIG,
    as_json: JsonOption = False,
) -> None:
    """What happened: changes of state, questions, restarts; the newest last."""
    from factory_watchdog.cli import history as command

    command.history(name, limit, config, as_json=as_json)


@app.command()
def explain(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|RESTART]", help="A backend, or a restart by its number; none: all."),
    ] = None,
    config: ConfigOption = CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Why a backend is what it is, what happens when, and why there is no restart; or why there was one."""
    from factory_watchdog.cli import explain as command

    command.explain(what, config, as_json=as_json)


@app.command()
def reset(
    name: Annotated[str, typer.Argument(help="The backend.")],
    config: ConfigOption = CONFIG,
) -> None:
    """Close a backend's breaker and forget its restarts."""
    from factory_watchdog.cli import orders as command

    command.reset(name, config)


@app.command()
def restart(
    name: Annotated[str, typer.Argument(help="The backend.")],
    config: ConfigOption = CONFIG,
) -> None:
    """Restart a backend: with the proof, the holds and the end of a restart of the watchdog's own. Exits 1 if held."""
    from factory_watchdog.cli import orders as command

    command.restart(name, config)


@app.command()
def maintenance(
    name: Annotated[str, typer.Argument(help="The backend.")],
    length: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long from now, at most 7d.")] = "",
    end: Annotated[bool, typer.Option("--end", help="End it now.")] = False,
    config: ConfigOption = CONFIG,
) -> None:
    """Set a backend aside: it is read and shown, never asked and never restarted."""
    from factory_watchdog.cli import orders as command

    command.maintenance(name, length, config, end=end)


@app.command()
def simulate(
    scenarios: Annotated[list[Path], typer.Argument(metavar="SCENARIO...", help="Scenario files.")],
    as_json: JsonOption = False,
) -> None:
    """Play scenario files in virtual time. Exits 0 when all expectations hold, 1 when not, 2 when a file is wrong."""
    from factory_watchdog.cli import simulate as command

    raise typer.Exit(command.simulate(scenarios, as_json=as_json))


@app.command()
def record(
    url: Annotated[str, typer.Argument(metavar="URL", help="Base address of the server.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to: gzipped JSON lines.")],
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="Time from row to row.")] = "1s",
    seconds: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long; default: until Ctrl-C.")] = "",
    pause: Annotated[bool, typer.Option("--pause", help="Ask for vLLM's pause signs too (development mode).")] = False,
    group: Annotated[
        str, typer.Option("--control-group", metavar="GROUP", help="Record its processes: /system.slice/vllm.service")
    ] = "",
) -> None:
    """Record what a server shows from outside, for `replay` and for reports."""
    from factory_watchdog.cli import record as command

    command.run(url, file, every=every, seconds=seconds, pause=pause, group=group)


@app.command()
def replay(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Recordings, gzipped JSON lines.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the backend, or interval.")
    ] = None,
    question: Annotated[
        str, typer.Option("--question", metavar="never|timeout|ok", help="How questions are taken.")
    ] = "never",
    as_json: JsonOption = False,
) -> None:
    """Play recordings in virtual time: what would have been judged, asked and restarted."""
    from factory_watchdog.cli import replay as command

    command.play(traces, settings or [], question, as_json=as_json)


@app.command()
def demo() -> None:
    """Show the main job in about a minute: a simulated server works, hangs, is proven hung and restarted."""
    from factory_watchdog.cli import demo as command

    raise typer.Exit(command.demo())


@config_app.command("check")
def config_check(config: ConfigOption = CONFIG) -> None:
    """Say everything that is wrong with the file. Exits 0 when it can be used, 1 when not."""
    from factory_watchdog.cli import config as command

    command.check(config)


@config_app.command("show")
def config_show(config: ConfigOption = CONFIG, as_json: JsonOption = False) -> None:
    """Show every setting as it is used, defaults filled in."""
    from factory_watchdog.cli import config as command

    command.show(config, as_json=as_json)


@config_app.command("polkit")
def config_polkit(config: ConfigOption = CONFIG) -> None:
    """Print the polkit rule that lets the service user restart exactly the configured units."""
    from factory_watchdog.cli import config as command

    command.polkit(config)

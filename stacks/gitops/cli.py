"""The `tidemill gitops` commands: this file prints; the other files of the room decide."""

import argparse
from pathlib import Path
from typing import Any

from planner.command.options import add_command, add_format, add_spec
from planner.command.printed import print_json, print_line, require_output, say, show_progress, write_result
from planner.facts.digest import pretty_json
from planner.plan.user_input import named_files
from planner.problems.errors import InfeasibleError

__all__ = ["add_gitops"]

FORGES = ("github", "gitlab", "gitea")


def add_gitops(commands: Any) -> None:
    """Add `tidemill gitops` and its commands to `commands`, the result of argparse's `add_subparsers`."""
    gitops = add_command(
        commands,
        "gitops",
        "propose changes of a spec, and check them before they are merged",
        "Pull requests, where a spec and the folder that is rendered from it are kept in Git: opened, and checked.",
    )
    ours = gitops.add_subparsers(metavar="COMMAND", required=True)
    _add_init(ours)
    _add_check(ours)
    _add_comment(ours)
    _add_propose(ours)


def _add_init(commands: Any) -> None:
    init = add_command(
        commands,
        "init",
        "write what checks pull requests, and what applies them",
        "Write the files by which GitHub and GitLab check changes of SPEC, and by which Argo CD or Flux applies them, "
        "into the repository whose root is the working directory: those that are named, or else those of both forges. "
        "Missing files are written. If a file is there and says something else, nothing is written.",
    )
    add_spec(init)
    init.add_argument("folder", type=Path, metavar="FOLDER", help="the folder that tidemill render writes for it")
    init.add_argument(
        "--environments",
        metavar="NAMES",
        help="names with commas between them, for one cluster each, in the order of promotion: the environment NAME "
        "has the overlays NAME.release.yaml and NAME.yaml beside SPEC, which are written where they are missing, and "
        "the folder FOLDER/NAME",
    )
    init.add_argument("--github", action="store_true", help="write GitHub's files")
    init.add_argument("--gitlab", action="store_true", help="write GitLab's file")
    init.add_argument("--argocd", action="store_true", help="write an Application of Argo CD for each environment")
    init.add_argument("--flux", action="store_true", help="write the objects of Flux for each environment")
    init.add_argument("--repository", metavar="URL", help="where clusters fetch from, for --argocd and --flux")
    init.add_argument(
        "--loads-from",
        metavar="URL",
        help="write, of the forges' files, only the job that proposes new expert maps each night, from the loads at "
        "this address: that of tidemill experts --from",
    )
    add_format(init)
    init.set_defaults(command=_init)


def _add_check(commands: Any) -> None:
    check = add_command(
        commands,
        "check",
        "say what a change does, and refuse it on conditions",
        "Check a spec, compare its plan with what runs, and say whether FOLDER is what it renders. Nothing is written. "
        "Exit with 3 if a condition of --fail-on holds.",
    )
    add_spec(check)
    check.add_argument("folder", type=Path, metavar="FOLDER", help="the folder that tidemill render wrote for it")
    check.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="a checkout of the branch that the change is for, where SPEC and FOLDER have the same paths: its folder "
        "says what runs; default: FOLDER says it",
    )
    check.add_argument(
        "--fail-on",
        metavar="LIST",
        help="conditions with commas between them: outage, degraded (or worse), slo, capacity, stale, nodes (that "
        "another environment has too), unjudged (fields that may do what no figure shows), and cost+N%% for a day that "
        "costs over N %% more",
    )
    check.add_argument("-o", dest="output", type=Path, metavar="FILE", help="write the plan's JSON here as well")
    add_format(check, "markdown")
    check.set_defaults(command=_check)


def _add_comment(commands: Any) -> None:
    comment = add_command(
        commands,
        "comment",
        "write a check's report as the comment of a pull request",
        "Write what tidemill gitops check --format json printed as markdown. The report may come from anybody: it is "
        "refused if it is none, and nothing in it is read as markdown.",
    )
    comment.add_argument("report", type=Path, metavar="REPORT.json", help="the report")
    comment.add_argument(
        "--environment",
        default="",
        metavar="NAME",
        help="the environment that was checked: each has a comment of its own",
    )
    comment.set_defaults(command=_comment)


def _add_propose(commands: Any) -> None:
    propose = add_command(
        commands,
        "propose",
        "open a pull request for a change, or for new expert maps",
        "Render SPEC into FOLDER on a branch of its own, push that, and open a pull request with the diff as its text, "
        "or update the one that is open. The checkout stays as it is. Whose commits these are, git config says. The "
        "environment variable TIDEMILL_TOKEN has a token that may write code and pull requests.",
    )
    add_spec(propose)
    propose.add_argument("folder", type=Path, metavar="FOLDER", help="the folder that tidemill render writes for it")
    propose.add_argument(
        "--loads",
        type=Path,
        metavar="LOADS",
        help="propose new expert maps: put these loads into the spec's expert_load.file, if what the maps gain is "
        "worth the restarts",
    )
    propose.add_argument(
        "--payback",
        dest="most_hours",
        type=float,
        metavar="HOURS",
        help="time in which new maps must make up for what their restarts cost; default: 24",
    )
    propose.add_argument("--remote", default="origin", metavar="NAME", help="where to push to; default: origin")
    propose.add_argument(
        "--into", metavar="BRANCH", help="the branch that the change is for; default: the remote's default branch"
    )
    propose.add_argument(
        "--branch", metavar="BRANCH", help="the branch of the change; default: tidemill/ and the folder's name"
    )
    propose.add_argument("--forge", choices=FORGES, help="what runs on the remote's host, where its name does not say")
    propose.add_argument(
        "--forge-url",
        metavar="URL",
        help="where the forge runs, if not at the root of the remote's host; for example https://example.com/gitlab",
    )
    add_format(propose)
    propose.set_defaults(command=_propose)


def _init(arguments: argparse.Namespace) -> None:
    from planner.plan.user_input import read_spec
    from stacks.gitops import init

    environments = init.make_environments(arguments.spec, arguments.folder, arguments.overlays, arguments.environments)
    engines = [each for each in init.ENGINES if getattr(arguments, each)]
    repository = init.require_repository(arguments.repository) if engines else ""
    kubernetes = read_spec(arguments.spec, arguments.overlays).written.kubernetes
    new = init.overlay_files(Path(), environments, kubernetes)
    specs = {
        each: read_spec(each.spec, [path for path in each.overlays if str(path) not in new]) for each in environments
    }
    forges = [each for each in init.FORGES if getattr(arguments, each)]
    if arguments.loads_from is not None:
        address = init.require_loads(arguments.loads_from, list(specs.values()))
        files = new | init.rebalancing_files(environments, forges or init.FORGES, address)
    else:
        files = new | init.workflow_files(environments, forges or ([] if engines else init.FORGES))
    for each in environments if engines else ():
        own = init.overlay_namespace(each, kubernetes.namespace) if str(each.own_overlay) in new else ""
        files |= init.engine_files(each, specs[each], engines, repository, own)
    init.write_files(Path(), files)
    for note in init.recommend_controller(specs):
        say(note)
    if arguments.format == "json":
        print_json({"files": list(files)})
    else:
        for path in files:
            print_line(f"{path}{_next_step(path)}")


def _next_step(path: str) -> str:
    """Return `: include it in .gitlab-ci.yml ...` for a file that GitLab does not read by itself; empty for others."""
    return f": include it in .gitlab-ci.yml (include: [{{local: {path}}}])" if path.startswith(".gitlab/") else ""


def _check(arguments: argparse.Namespace) -> int:
    from stacks.gitops.check import Call, check_change, require_call
    from stacks.gitops.gate import read_conditions
    from stacks.gitops.report import report_markdown, report_text

    conditions = () if arguments.fail_on is None else read_conditions(arguments.fail_on)
    call = Call(arguments.spec, arguments.folder, arguments.base, conditions, tuple(arguments.overlays))
    require_call(call)
    if arguments.output:
        require_output(arguments.output, arguments)
    with show_progress(f"checking {arguments.spec}"):
        plan, report = check_change(call)
    if arguments.output:
        places = [arguments.spec, *([arguments.base / arguments.spec] if arguments.base else [])]
        require_output(arguments.output, arguments, named_files(*((each, plan) for each in places)))
        write_result(arguments.output, pretty_json(plan.as_json()))
    if arguments.format == "json":
        print_json(report.model_dump(mode="json"))
    else:
        print({"text": report_text, "markdown": report_markdown}[arguments.format](report), end="")
    return InfeasibleError.exit_status if report.objections else 0


def _comment(arguments: argparse.Namespace) -> None:
    from stacks.gitops.comment import comment_on

    print(comment_on(arguments.report, arguments.environment), end="")


def _propose(arguments: argparse.Namespace) -> None:
    from stacks.gitops.propose import Call, propose

    names = ("loads", "most_hours", "remote", "into", "branch", "forge", "forge_url")
    named = {name: getattr(arguments, name) for name in names}
    with show_progress(f"proposing {arguments.spec}"):
        outcome = propose(Call(arguments.spec, arguments.folder, tuple(arguments.overlays), **named))
    if arguments.format == "json":
        print_json(outcome.as_json())
    else:
        print(outcome.as_text(), end="")

"""The values of ``--host-policy``, as Triton spells them, and the cores that they stand for.

Source: server's ``docs/user_guide/optimization.md``, "NUMA Optimization", and core's
``numa_utils.cc``. Beside ranges a single core is taken, which Triton refuses when it uses it.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.errors import InvalidArgumentError, UnsupportedError

_NUMA_NODE: Final = "numa-node"
_CPU_CORES: Final = "cpu-cores"

# The first and the last core of each, both included.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class HostPolicySetting:
    """One setting of one policy.

    Attributes:
        policy: its name, which instance groups give.
        text: as it was given, for messages.
        node: whose cores it stands for; None where it names cores.
        ranges: of the cores that it names.
    """

    policy: str
    text: str
    node: int | None = None
    ranges: Ranges = ()


def parse_host_policy(text: str) -> HostPolicySetting:
    """One setting.

    Raises:
        ValueError: it isn't one.
    """
    policy, comma, setting = text.partition(",")
    name, equals, value = setting.partition("=")
    if not (policy and comma and name and equals and value):
        raise ValueError(f"option format is '<policy_name>,<setting>=<value>', got '{text}'")
    if name == _NUMA_NODE:
        if not value.isdecimal():
            raise ValueError(f"'{_NUMA_NODE}' is the number of a NUMA node, got '{value}'")
        return HostPolicySetting(policy, text, node=int(value))
    if name == _CPU_CORES:
        return HostPolicySetting(policy, text, ranges=_parse_ranges(value))
    raise ValueError(
        f"unsupported host policy setting '{name}' is specified, supported settings are "
        f"'{_NUMA_NODE}', '{_CPU_CORES}'"
    )


def find_policy_cores(settings: Sequence[HostPolicySetting]) -> dict[str, frozenset[int]]:
    """The cores of each policy, on this machine.

    Raises:
        InvalidArgumentError: there is no such core or node, or this process may not use it.
        UnsupportedError: this system keeps no thread to cores.
    """
    if not settings:
        return {}
    if not hasattr(os, "sched_setaffinity"):
        raise UnsupportedError("--host-policy needs Linux: only there can threads be kept to cores")
    return resolve_policies(settings, os.sched_getaffinity(0))


def resolve_policies(
    settings: Sequence[HostPolicySetting],
    allowed: Collection[int],
    read: Callable[[str], str] = lambda path: Path(path).read_text(),
) -> dict[str, frozenset[int]]:
    """The cores of each policy.

    Where a policy has both settings its cores are those that it names, and the node only has to be
    there. A setting that is given twice counts as it was given last.

    Args:
        settings: of all policies.
        allowed: cores that this process may use.
        read: a file of the system.

    Raises:
        InvalidArgumentError: there is no such core or node, or this process may not use it.
    """
    found: dict[str, frozenset[int]] = {}
    named: dict[str, frozenset[int]] = {}
    for setting in settings:
        if setting.node is None:
            named[setting.policy] = _named_cores(setting, allowed)
        else:
            found[setting.policy] = _node_cores(setting, allowed, read)
    return found | named


def _named_cores(setting: HostPolicySetting, allowed: Collection[int]) -> frozenset[int]:
    for core in _walk(setting.ranges):
        # Ends after as many as are allowed at most, however long the range is.
        if core not in allowed:
            raise InvalidArgumentError(
                f"--host-policy={setting.text}: there is no core {core}, or this process may not "
                f"use it; it may use {_format_cores(allowed)}"
            )
    return frozenset(_walk(setting.ranges))


def _node_cores(
    setting: HostPolicySetting, allowed: Collection[int], read: Callable[[str], str]
) -> frozenset[int]:
    try:
        ranges = _parse_ranges(read(f"/sys/devices/system/node/node{setting.node}/cpulist").strip())
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"--host-policy={setting.text}: there is no NUMA node {setting.node} with cores on "
            "this machine"
        ) from error
    cores = frozenset(allowed).intersection(_walk(ranges))
    if not cores:
        raise InvalidArgumentError(
            f"--host-policy={setting.text}: this process may use no core of NUMA node "
            f"{setting.node}; it may use {_format_cores(allowed)}"
        )
    return cores


def _parse_ranges(text: str) -> Ranges:
    ranges = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            last = first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise ValueError(
                f"host policy setting '{_CPU_CORES}' format is "
                f"'<lower_cpu_core_id>-<upper_cpu_core_id>', several with commas between them. "
                f"Got {text}"
            )
        ranges.append((int(first), int(last)))
    return tuple(ranges)


def _walk(ranges: Ranges) -> Iterator[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def _format_cores(cores: Collection[int]) -> str:
    """As ranges, the way they are given."""
    ranges: list[tuple[int, int]] = []
    for core in sorted(cores):
        if ranges and ranges[-1][1] == core - 1:
            ranges[-1] = (ranges[-1][0], core)
        else:
            ranges.append((core, core))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)

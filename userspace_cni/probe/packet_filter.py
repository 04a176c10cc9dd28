"""Runs a compiled packet filter (classic BPF), so that a capture keeps only the frames that a filter expression means.

Why our own: every frame is filtered once, before it is counted, written or shown, without a second process between the switch
and the output. libpcap's compiler is no Python package: `tcpdump -ddd` prints its program. Pure; a program only jumps forward,
so each frame takes at most as many steps as the program has.

Source: filter.rst of the kernel, bpf(4), and S. McCanne, V. Jacobson, The BSD Packet Filter (1993).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_WORD: Final = 0xFFFFFFFF
_MEMORY: Final = 16
"""Words of memory that a program has."""
_LENGTH_MAX: Final = 4096
"""Instructions of a program (BPF_MAXINSNS of the kernel)."""
_LD, _LDX, _ST, _STX, _ALU, _JMP, _RET, _MISC = range(8)
_IMM, _ABS, _IND, _MEM, _LEN, _MSH = 0x00, 0x20, 0x40, 0x60, 0x80, 0xA0
_SIZES: Final = {0x00: 4, 0x08: 2, 0x10: 1}
_X: Final = 0x08
_RET_A: Final = 0x10
_TXA: Final = 0x80


class BadProgram(ValueError):
    """It is no program of classic BPF."""


class _Outside(Exception):
    """The program reads beyond the frame's end, or divides by zero: the frame is refused."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: struct bpf_insn."""

    code: int
    jump_true: int
    jump_false: int
    k: int


class PacketFilter:
    """A program. Raises BadProgram for one that does not end, jumps out of itself or has unknown instructions."""

    def __init__(self, program: tuple[Instruction, ...]) -> None:
        if not 0 < len(program) <= _LENGTH_MAX or program[-1].code & 7 != _RET:
            raise BadProgram(f"a program has 1 to {_LENGTH_MAX} instructions, and the last one returns: {len(program)}")
        for number, each in enumerate(program):
            _require_valid(each, len(program) - number - 1)
        self.program = program

    @classmethod
    def parse(cls, text: str) -> PacketFilter:
        """The program as `tcpdump -ddd` prints it: the count of instructions, then four numbers for each. Raises BadProgram."""
        lines = text.split("\n")
        try:
            count = int(lines[0])
            found = tuple(Instruction(*map(int, line.split())) for line in lines[1 : count + 1])
        except (TypeError, ValueError) as error:
            raise BadProgram(f"no output of tcpdump -ddd: {text[:80]!r}") from error
        if len(found) != count:
            raise BadProgram(f"{len(found)} of {count} instructions")
        return cls(found)

    def matches(self, frame: bytes) -> bool:
        """Whether the program takes the frame, which has to be whole."""
        try:
            return _run(self.program, frame) != 0
        except _Outside:
            return False


def _run(program: tuple[Instruction, ...], frame: bytes) -> int:
    a = x = at = 0
    memory = [0] * _MEMORY
    while True:
        each = program[at]
        code, k = each.code, each.k
        kind = code & 7
        at += 1
        if kind == _JMP:
            at += _jump(each, a, k if not code & _X else x)
        elif kind == _LD:
            a = _load(code, k, x, frame, memory)
        elif kind == _ALU:
            a = _computed(code & 0xF0, a, x if code & _X else k)
        elif kind == _LDX:
            x = _load(code, k, x, frame, memory)
        elif kind == _RET:
            return a if code & 0x18 == _RET_A else k
        elif kind == _MISC:
            a, x = (x, x) if code & 0xF8 == _TXA else (a, a)
        else:
            memory[k] = a if kind == _ST else x


def _load(code: int, k: int, x: int, frame: bytes, memory: list[int]) -> int:
    """The value of a load into either register."""
    mode = code & 0xE0
    if mode == _MSH:
        return 4 * (_read(frame, k, 1) & 0x0F)
    if mode in (_ABS, _IND):
        return _read(frame, k + x if mode == _IND else k, _SIZES[code & 0x18])
    return {_IMM: k, _LEN: len(frame)}[mode] if mode != _MEM else memory[k]


def _read(frame: bytes, start: int, size: int) -> int:
    if start + size > len(frame):
        raise _Outside
    return int.from_bytes(frame[start : start + size], "big")


def _jump(each: Instruction, a: int, operand: int) -> int:
    """How many instructions are skipped."""
    match each.code & 0xF0:
        case 0x00:
            return each.k
        case 0x10:
            taken = a == operand
        case 0x20:
            taken = a > operand
        case 0x30:
            taken = a >= operand
        case _:
            taken = bool(a & operand)
    return each.jump_true if taken else each.jump_false


def _computed(operation: int, a: int, operand: int) -> int:
    match operation:
        case 0x00:
            return (a + operand) & _WORD
        case 0x10:
            return (a - operand) & _WORD
        case 0x20:
            return (a * operand) & _WORD
        case 0x30 | 0x90:
            if not operand:
                raise _Outside
            return a // operand if operation == 0x30 else a % operand
        case 0x40:
            return a | operand
        case 0x50:
            return a & operand
        case 0x60:
            return (a << operand) & _WORD if operand < 32 else 0
        case 0x70:
            return a >> operand
        case 0xA0:
            return a ^ operand
        case _:
            return -a & _WORD


def _require_valid(each: Instruction, behind: int) -> None:
    """Raise BadProgram for an unknown instruction, or one that jumps over the `behind` instructions behind it."""
    code, kind = each.code, each.code & 7
    known = {
        _LD: code & 0xE0 in (_IMM, _ABS, _IND, _MEM, _LEN) and code & 0x18 in _SIZES,
        _LDX: code & 0xE0 in (_IMM, _MEM, _LEN) or code == _LDX | _MSH | 0x10,
        _ALU: code & 0xF0 <= 0xA0,
        _JMP: code & 0xF0 <= 0x40,
        _MISC: code & 0xF8 in (0x00, _TXA),
    }
    jumps = (each.k,) if kind == _JMP and code & 0xF0 == 0 else (each.jump_true, each.jump_false)
    stores = kind in (_ST, _STX) or (kind in (_LD, _LDX) and code & 0xE0 == _MEM)
    is_in_reach = all(0 <= jump < max(behind, 1) for jump in jumps) if kind == _JMP else True
    if not known.get(kind, True) or not is_in_reach or not 0 <= each.k <= _WORD or (stores and each.k >= _MEMORY):
        raise BadProgram(f"the instruction {each} is unknown, or jumps too far")

import io

from rich.table import Table
from rich.text import Text

from naiad.cli.console import make_console


def test_a_terminal_does_not_obey_what_is_shown() -> None:
    file = io.StringIO()
    console = make_console(file)
    console.print(Text("a\x1b[2Jb\x07\x9bc\udcff\tTAB\nnext"), soft_wrap=True)
    console.print("\x1b]0;title\x07", markup=False, highlight=False)
    table = Table("\x1b[31mred")
    table.add_row("\x00 cell")
    console.print(table)
    text = file.getvalue()
    assert text.isprintable() or set(filter(lambda c: not c.isprintable(), text)) == {"\n"}
    assert r"a\x1b[2Jb" in text
    assert r"\x9bc\udcff" in text
    assert "\nnext" in text
    text.encode("utf-8")

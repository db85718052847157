"""Long work says how far it is and how long it will still take; short work says nothing."""

from gemm_model.report.progress import Progress


def test_long_work_tells_the_time_left_and_short_work_is_quiet(capsys):
    now = [10.0]
    bar = Progress("ranking", 100, clock=lambda: now[0])
    now[0] = 11.0
    bar.advance(10)
    assert capsys.readouterr().err == ""
    now[0] = 15.0
    bar.advance(15)  # a quarter in five seconds: three more times as long is left
    assert capsys.readouterr().err == "ranking: 25 of 100, 15 s left\n"
    now[0] = 18.0
    bar.advance(5)
    assert capsys.readouterr().err == ""
    now[0] = 25.0
    bar.advance(45)
    bar.close()
    assert capsys.readouterr().err == "ranking: 75 of 100, 5 s left\n"


def test_work_whose_parts_are_known_late_tells_its_time_left_too(capsys):
    now = [10.0]
    bar = Progress("reading", 1, clock=lambda: now[0])
    bar.tell("fit", 0, 12)
    now[0] = 12.0
    bar.tell("fit", 0, 12)
    assert capsys.readouterr().err == ""
    bar.tell("held out", 3, 12)
    assert capsys.readouterr().err == "held out: 3 of 12, 6 s left\n"

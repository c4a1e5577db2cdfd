"""What the fixture does, on the NIC: `pytest test_softnic.py` where the wheel is installed, with ibverbs-utils and perftest."""

import pytest

from softnic_pytest import Failed


def test_a_program_finds_the_device(softnic):
    assert "mlx5_0" in softnic.run("ibv_devinfo", model="cx7")
    softnic.assert_clean()


def writes(softnic, **options):
    server = softnic.start("ib_write_bw", "-n", "100", **options)
    softnic.run_until("ib_write_bw", "-n", "100", "127.0.0.1", **options)
    server.wait()


def test_what_the_nics_counted_is_known(softnic):
    writes(softnic)
    assert softnic.counters("messages_received") >= 100
    softnic.assert_clean()


def test_a_counter_that_no_nic_has_is_an_error(softnic):
    softnic.run("ibv_devinfo")
    with pytest.raises(KeyError, match="nonsense"):
        softnic.counters("nonsense")


def test_a_program_that_fails_tells_what_it_said(softnic):
    with pytest.raises(Failed, match="no-such-option"):
        softnic.run("ibv_devinfo", "--no-such-option")


def test_a_program_that_does_not_end_is_an_error(softnic):
    with pytest.raises(Failed, match="has not ended within 1 s"):
        softnic.run("ib_write_bw", timeout=1)


def test_a_fault_is_no_clean_run(softnic):
    softnic.run("ibv_devinfo")
    lines = softnic.lines()
    lines[0]["counters"]["doorbell_missing"] = 1
    softnic.lines = lambda: lines
    with pytest.raises(AssertionError, match="doorbell_missing"):
        softnic.assert_clean()

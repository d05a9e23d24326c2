"""A plugin of pytest that prints a line a test, and no dots."""

import os

import pytest


def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # reported where all workers' reports arrive
    if report.failed or report.when == "call" and report.passed:
        print("ok" if report.passed else "not ok", "-", report.nodeid, flush=True)
    elif report.skipped:
        print("skipped:", report.nodeid, flush=True)


def pytest_collectreport(report):
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print("not ok - collecting", report.nodeid, flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus():
    category, _, _ = yield
    return category, "", ""

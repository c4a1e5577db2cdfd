"""The software NIC as a Python package: the command `softnic`, and where its program lies."""

import os
import sys


def executable():
    """Path of the program `softnic` that came with this package."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "softnic_files", "softnic")


def main():
    """The command `softnic`."""
    os.execv(executable(), ["softnic", *sys.argv[1:]])

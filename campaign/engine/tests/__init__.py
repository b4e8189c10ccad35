"""Tests of the workers: `python3 -m unittest discover -s campaign/engine -t campaign/engine`."""

"""What all tests share: pytester, which runs pytest inside a test."""

pytest_plugins = ["pytester"]

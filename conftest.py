pytest_plugins = ["evalharness.pytest_plugin"]

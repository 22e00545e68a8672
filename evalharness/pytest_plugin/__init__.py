"""The pytest plugin: options, markers, fixtures, work units, journal, gates. The only package that knows pytest."""

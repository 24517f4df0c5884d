"""All that people look at, made once: charts and pages."""

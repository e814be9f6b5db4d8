"""Results for people and for machines: console, HTML pages, JUnit, SARIF."""

"""One GradeReport and its views: terminal, plain text, HTML and JSON."""

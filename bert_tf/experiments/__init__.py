"""The paper's experiments: tables declared as data, planned as runs, made once each."""

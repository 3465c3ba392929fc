"""The paper's experiments: tables declared as data, planned as stages that are made once."""

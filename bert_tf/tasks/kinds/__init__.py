"""A file for each kind of task.

`tasks.task_table` lists kinds and tasks; docs/adding-a-task.md shows a new one.
"""

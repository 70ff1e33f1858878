"""
Logs of runs that are over, read into a Trace: what a recorder would have seen, as far as they say.

find.py finds the files and their formats. A reader for each format yields Rows, one line at a time
(tables.py, json_lines.py, trainer_state.py, tensorboard.py, mlflow.py, printed.py). roles.py tells
what a column means by its name. column.py keeps a bounded part of each column, run.py puts the
columns and files of one run together by step, order.py brings them into one order, and trace.py
writes them down as events; failed_allocations.py reads what torch says of memory.
configuration.py reads the settings that stand beside logs,
reading.py tells how far a file has been read. entry.py is the way in.
"""

"""Tables in files: CSV, Parquet and Arrow in, CSV, Parquet and JSON out, batch by batch; whole files appear or none.

Nothing here knows what the columns mean. `opening` finds out what a file is, `delimited` and `batches` read it as Arrow
arrays, `kinds` and `columns` say what texts are, `writing` and `atomic` put tables into files.
"""

"""Tables in files: CSV and Parquet in, CSV, Parquet and JSON out, batch by batch; whole files appear or none.

Nothing here knows what the columns mean. `opening` finds out what a file is, `delimited` and `parquet` read it,
`fields` says what its values are, `columns` gathers them, `writing` and `atomic` put tables into files.
"""

"""Tables in files: CSV, Parquet, Arrow and JSON lines in, CSV, Parquet and JSON out, batch by batch.

Nothing here knows what the columns mean. `batches` reads tables and files with types, `text` reads text files, `tables`
opens either by name and writes, `atomic` makes files appear whole.
"""

"""Data at the border: tables, outcomes, files, and data sets that ship."""

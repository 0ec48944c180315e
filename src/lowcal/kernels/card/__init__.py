"""Sums over rows on a graphics card, and the same sums in NumPy with the same bits.

What is computed at a row is a formula: a few lines of text that C and Python read alike. On the card a formula becomes
a CUDA kernel (`cuda`); `twin` evaluates the very text with NumPy, and so defines what a card must return. Terms are
rounded to whole numbers before they are added, so that sums do not depend on the order of rows, blocks or threads. In
single precision, exponentials and logarithms are written out in additions and products that are rounded once each,
which makes twins agree to the last bit; in double precision they are the libraries' own, and differ by a few units in
the last place.
"""

"""Certificates: what a sample says about the population, for all constraints at once (spec 10.i).

The rows must not have helped to make the model or to choose the subpopulations. Then, with the stated confidence and
simultaneously for every subpopulation c and weight w, the violation in the population lies within the limits around the
violation of the sample. Four methods make the limits:

* "bootstrap": score intervals with a correction for skewness, as wide as labels that are drawn anew ask for. If the
  model is right, they are nearly exact at any number of rows; else asymptotic. The narrowest;
* "exact": by betting; holds for every number of rows (Waudby-Smith and Ramdas 2024);
* "bernstein": from each constraint's own variance; holds for every number of rows (10.i.b);
* "hoeffding": from the range alone; holds for every number of rows (10.i.a).

For weight classes that are not finitely many moments (smooth) the last three use the symmetrisation bound of 10.i.e.
Limits per person (`masses`) divide these by the mass of the subpopulation.
The exact test redraws the labels from the predictions (10.i.d).
"""

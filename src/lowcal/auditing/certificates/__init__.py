"""Certificates: simultaneous inference about the population from a sample (spec 10.i).

The rows must not have been used to make the model or to choose the subpopulations. Then, with the stated confidence and
simultaneously for every subpopulation c and weight w, the violation in the population lies within the limits around the
violation of the sample. There are four methods:

* "bootstrap": score intervals with a correction for skewness, whose critical value comes from redrawn labels. Nearly
  exact at any number of rows if the model is right, asymptotic otherwise. The narrowest;
* "exact": by betting; holds for any number of rows (Waudby-Smith and Ramdas 2024);
* "bernstein": from each constraint's own variance; holds for any number of rows (10.i.b);
* "hoeffding": from the range alone; holds for any number of rows (10.i.a).

For weight classes that are not finitely many moments (smooth) the last three use the symmetrisation bound of 10.i.e.
Limits per person (`masses`) divide these by the mass of the subpopulation.
The exact test redraws the labels from the predictions (10.i.d).
"""

"""What the paper proves: guarantees, the hierarchy of notions, sample sizes."""

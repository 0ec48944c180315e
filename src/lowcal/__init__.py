"""Low-degree multicalibration."""

"""Audits: what is measured, its certificates, reports and plots."""

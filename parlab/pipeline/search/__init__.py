"""Schedules that are searched for, and the times that no schedule is below."""

"""How ranks run: their records (`tasks`), what they note (`log`), how they park, are woken and end (`base`), why they
cannot move on (`diagnosis`), and the engine of a world in one process (`threads`). `processes` has the other engine.
"""

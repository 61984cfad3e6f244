"""nbgrader's settings for a course of parlab's lessons; `make assignments` puts a copy into the course's folder."""

c = get_config()  # type: ignore[name-defined] # noqa: F821 - Jupyter's own
c.CourseDirectory.course_id = "parlab"
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}  # `labs.check` calls this "not written yet"
c.Execute.timeout = 120  # seconds for a cell; a case has a limit of its own, 10 s
c.Execute.interrupt_on_timeout = True  # an endless cell costs itself, not the notebook

"""Why an attachment does not work: facts of all rooms, judged by subject, in an order of causes, and told in one paragraph.

To add a cause: what it follows from is a field of `AttachmentSight` or of one of its parts, gathered by the command; its judge is
a function `AttachmentSight -> Findings` in the module of its subject, named in `causes.JUDGES`; what it explains is a row of
`causes.EXPLAINS`. A break of a node that it must tell is a function in `tests/lab/breaking`.
"""

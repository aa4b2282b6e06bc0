"""The cluster's page: the replies of the admin API as HTML, rendered here, with no build step.

Pages read through the API's own handlers and change things through its own operations, so that
rights, checks and audit events are the same. There is no inline script or style; every text
from outside is escaped by the templates.
"""

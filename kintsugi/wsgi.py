"""The WSGI application of the console's own process; `kintsugi up` makes its own."""

import os

from django.core.wsgi import get_wsgi_application

from kintsugi import startup

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
application = get_wsgi_application()
startup.require()

from kintsugi import tasks  # noqa: E402  (models: the application has loaded them)
from kintsugi.health import reporter  # noqa: E402  (as above)

# Ready within milliseconds: a server asks for the application first, and listens then.
reporter.start([reporter.ProcessPart("web")], work=tasks.evaluate_own_health)

"""The WSGI application of the console's own process; `kintsugi up` makes its own."""

import os

from django.core.wsgi import get_wsgi_application

from kintsugi import startup

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kintsugi.settings")
application = get_wsgi_application()
startup.require()

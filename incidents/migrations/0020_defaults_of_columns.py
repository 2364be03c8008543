"""Processes of the version before insert rows without these columns while a site is upgraded. 0011 and
0017 give them defaults; here they get them where those ran without."""

from django.db import migrations

_SET = (
    "ALTER TABLE incidents_fault ALTER COLUMN forger SET DEFAULT '',"
    " ALTER COLUMN best_provenance SET DEFAULT '{}', ALTER COLUMN last_provenance SET DEFAULT '{}'",
    'ALTER TABLE incidents_node ALTER COLUMN is_serving SET DEFAULT true',
)


def set_defaults(apps, schema_editor):
    """On PostgreSQL: SQLite has one process, which is of one version."""
    if schema_editor.connection.vendor == 'postgresql':
        for statement in _SET:
            schema_editor.execute(statement)


class Migration(migrations.Migration):
    # Each statement is a transaction: no table is locked while another is waited for.
    atomic = False

    dependencies = [
        ('incidents', '0019_site_changes'),
    ]

    operations = [
        migrations.RunPython(set_defaults, migrations.RunPython.noop, elidable=True),
    ]

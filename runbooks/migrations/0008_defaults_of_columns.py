"""Processes of the version before insert rows without this column while a site is upgraded. 0002 gives
it a default; here it gets one where that ran without."""

from django.db import migrations


def set_default(apps, schema_editor):
    """On PostgreSQL: SQLite has one process, which is of one version."""
    if schema_editor.connection.vendor == 'postgresql':
        schema_editor.execute(
            "ALTER TABLE runbooks_seennode ALTER COLUMN persons_reason SET DEFAULT ''"
        )


class Migration(migrations.Migration):

    dependencies = [
        ('runbooks', '0007_second_person'),
    ]

    operations = [
        migrations.RunPython(set_default, migrations.RunPython.noop, elidable=True),
    ]

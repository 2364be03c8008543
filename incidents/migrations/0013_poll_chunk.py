"""Targets are polled in chunks. What each poll remembers stays where it is; who answered at its
last poll is in step with its chunk from now on, and the chunks are made by the first plan.

A worker of the version before polls nothing meanwhile: no row of its has a time any more.
"""

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def put_in_step(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    polls = apps.get_model("incidents", "Poll").objects.filter(failures=0)
    polls.update(next_poll_at=None, leased_until=None)


def leave_room(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """PostgreSQL writes a row in place where its page has room."""
    if editor.connection.vendor == "postgresql":
        editor.execute("ALTER TABLE incidents_pollchunk SET (fillfactor = 50)")
        editor.execute("ALTER TABLE incidents_poll SET (fillfactor = 70)")


class Migration(migrations.Migration):

    dependencies = [
        ('incidents', '0012_inbox_attempts'),
    ]

    operations = [
        migrations.CreateModel(
            name='PollChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('detector', models.CharField(max_length=64)),
                ('kind', models.CharField(help_text='node, switch or site', max_length=8)),
                ('number', models.PositiveIntegerField(help_text='counted from 0, within the detector')),
                ('next_poll_at', models.DateTimeField()),
                ('leased_until', models.DateTimeField(blank=True, null=True)),
                ('polled_at', models.DateTimeField(blank=True, help_text='when its last round began, which all in step took part in', null=True)),
                ('size', models.PositiveIntegerField(help_text='how many targets')),
                ('targets', models.TextField(help_text='names, each between line feeds')),
            ],
        ),
        migrations.RemoveIndex(
            model_name='poll',
            name='poll_by_due',
        ),
        migrations.AlterField(
            model_name='poll',
            name='next_poll_at',
            field=models.DateTimeField(blank=True, help_text='empty: with its chunk', null=True),
        ),
        migrations.AlterField(
            model_name='poll',
            name='polled_at',
            field=models.DateTimeField(blank=True, help_text="when this row was written; in step, its chunk's may be later", null=True),
        ),
        migrations.RunPython(leave_room, migrations.RunPython.noop),
        migrations.RunPython(put_in_step, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name='poll',
            index=models.Index(condition=models.Q(('next_poll_at__isnull', False)), fields=['detector', 'next_poll_at'], name='poll_out_of_step'),
        ),
        migrations.AddConstraint(
            model_name='pollchunk',
            constraint=models.UniqueConstraint(fields=('detector', 'kind', 'number'), name='one_poll_chunk_per_number'),
        ),
    ]

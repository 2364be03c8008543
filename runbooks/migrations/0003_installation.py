import secrets
from typing import Any

from django.db import migrations, models


def create_site_id(apps: Any, schema_editor: Any) -> None:
    apps.get_model("runbooks", "Installation").objects.get_or_create(
        name="site", defaults={"site_id": secrets.token_hex(4)}
    )


class Migration(migrations.Migration):

    dependencies = [
        ('runbooks', '0002_persons_reason'),
    ]

    operations = [
        migrations.CreateModel(
            name='Installation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(default='site', max_length=16, unique=True)),
                ('site_id', models.CharField(max_length=8)),
            ],
        ),
        migrations.RunPython(create_site_id, migrations.RunPython.noop, elidable=False),
    ]

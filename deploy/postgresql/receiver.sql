-- A role of the receiver's own: it reads lines that anybody on the network may have written, and needs little of the
-- database. `psql -d kintsugi -f receiver.sql` as the owner of the tables, again after each `kintsugi migrate`; then
-- `\password kintsugi_receiver`. It hands events over and cannot read them again, nor any fault, incident, run, token or
-- person.
DO $$ BEGIN CREATE ROLE kintsugi_receiver LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT USAGE ON SCHEMA public TO kintsugi_receiver;
-- What it hands over, and how much waits there.
GRANT INSERT, SELECT (id, size, recorded_at) ON incidents_inboxbatch TO kintsugi_receiver;
GRANT SELECT, INSERT, UPDATE ON incidents_spoolposition TO kintsugi_receiver;
-- Who may send, and whom the inventory knows. Whose lines were refused.
GRANT SELECT (name) ON incidents_alias TO kintsugi_receiver;
GRANT SELECT (id, name, address, is_provisional) ON incidents_node, incidents_switch TO kintsugi_receiver;
GRANT SELECT, INSERT, UPDATE, DELETE ON incidents_refusedsender TO kintsugi_receiver;
-- Lines that no signature takes.
GRANT SELECT, INSERT, UPDATE, DELETE ON incidents_unreadtemplate, incidents_unreadonmachine TO kintsugi_receiver;
-- That it is alive, and that the tables are of its version.
GRANT SELECT, INSERT, UPDATE, DELETE ON incidents_heartbeat TO kintsugi_receiver;
GRANT SELECT ON django_migrations TO kintsugi_receiver;

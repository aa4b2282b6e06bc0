BEGIN TRANSACTION;
CREATE TABLE admin_tokens (
	id VARCHAR(32) NOT NULL, 
	name TEXT NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	secret_hash VARCHAR(64) NOT NULL, 
	created_at FLOAT NOT NULL, 
	created_by TEXT NOT NULL, 
	expires_at FLOAT, 
	revoked_at FLOAT, 
	PRIMARY KEY (id)
);
INSERT INTO "admin_tokens" VALUES('08ea18133419','anna','admin','b75872b186326d05f9a6614f21b075ae8a6817d2e8e1fc5c8965d64f0bf018b0',1800000000.0,'setup',NULL,NULL);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE api_keys (
	id VARCHAR(32) NOT NULL, 
	name TEXT NOT NULL, 
	secret_hash VARCHAR(64) NOT NULL, 
	grant_json TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	created_by TEXT NOT NULL, 
	expires_at FLOAT, 
	revoked_at FLOAT, 
	PRIMARY KEY (id)
);
INSERT INTO "api_keys" VALUES('7543bb52ccc8','team','2bd6adcf8fc565a382aacb3c9f3c3286a45aa4ffa17463c5bb1f1caa738c62e1','{"scopes": ["inference", "models"], "models": null, "limits": {"requests_per_minute": null, "tokens_per_minute": null, "concurrent_requests": null, "tokens_per_day": null, "tokens_per_month": null}}',1800000000.0,'anna',NULL,NULL);
CREATE TABLE authorities (
	id INTEGER NOT NULL, 
	certificate TEXT NOT NULL, 
	sealed_key TEXT NOT NULL, 
	issuing BOOLEAN NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "authorities" VALUES(1,'-----BEGIN CERTIFICATE-----
MIIBvDCCAWOgAwIBAgIUOB6xE/53SdAPhCm3teYXtXkrCLYwCgYIKoZIzj0EAwIw
OzE5MDcGA1UEAwwwbGxtZ3cgY2x1c3RlciBiMzk0Yjk3NCA0NGUxYzdiNzM1YWJk
NWM2MTMyYzEyMDgyMB4XDTI3MDExNDA4MDAwMFoXDTM3MDExMjA4MDAwMFowOzE5
MDcGA1UEAwwwbGxtZ3cgY2x1c3RlciBiMzk0Yjk3NCA0NGUxYzdiNzM1YWJkNWM2
MTMyYzEyMDgyMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE0OyWiIJvS55J6k/b
pys03XxDGQTC+r1spMerT697ncgv4fdonI+6N59XtHzksgLb9oJ5GOGPC/MGF67R
sS725aNFMEMwEgYDVR0TAQH/BAgwBgEB/wIBADAdBgNVHQ4EFgQUg+jeaPXpOIGE
GDYX2jRBYQ1Q4DkwDgYDVR0PAQH/BAQDAgEGMAoGCCqGSM49BAMCA0cAMEQCICJk
WxQX9RtMa1ElmgnqvO4XtESA8P81Uy3S4CphnvETAiBh3aX1WV2M1hCnt884xkcv
ML5pJnYQuvpmmF43w5dHTw==
-----END CERTIFICATE-----
','iHLSvhGygKQAS5q4xeQfwFO4wh/lrR+dW0Sv8tjprf1/AB+wKsUPkoi2lYQ0TmwC9PJ9yXdWxSUGf3VECwZ7VP7hSSCuhpovJGVlHDt1TCCGg2hW3MsGN2q99iSpBjedcyOnMU1UGvaTXLlLHucPgkXHW5XAqA4rnAiNg89VaQ7o0rkOdO0to6mwoSm6rU6R6Osq744heOD8xwfxj7tTmMvyLz6pJsRHU76waA5sbqTFzeDgfMzXHRT41gym67l/hnRTMmxLzxC9RyXm3VykRLz19jcZwAwLABIpPobaXGVoSVY3UoYhdCT43xb5h7ngJlob5bOkcyGHdjkvNiGi0SLfHw2+YWRCyU6aJyM=',1,1800000000.0);
CREATE TABLE catalog (
	name VARCHAR(255) NOT NULL, 
	owner TEXT NOT NULL, 
	entry_json TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "catalog" VALUES('llama','api','{"name":"llama","profiles":[{"engine":"fake","weights":"path:/models/fake","devices":{"memory_gib":40.0}}]}',1);
CREATE TABLE catalog_history (
	version INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR(255) NOT NULL, 
	owner TEXT NOT NULL, 
	entry_json TEXT, 
	who TEXT NOT NULL, 
	at FLOAT NOT NULL
);
INSERT INTO "catalog_history" VALUES(1,'llama','api','{"name":"llama","profiles":[{"engine":"fake","weights":"path:/models/fake","devices":{"memory_gib":40.0}}]}','anna',1800000000.0);
CREATE TABLE cluster (
	"key" VARCHAR(64) NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "cluster" VALUES('cluster_id','b394b974777ba63ce999d3cf1ac68119');
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at FLOAT NOT NULL, 
	who TEXT NOT NULL, 
	kind VARCHAR(64) NOT NULL, 
	subject TEXT NOT NULL, 
	message TEXT NOT NULL, 
	before_json TEXT, 
	after_json TEXT
);
INSERT INTO "events" VALUES(1,1800000000.0,'llmgw','node_lost','node gpu-02','gone',NULL,NULL);
CREATE TABLE join_tokens (
	id VARCHAR(32) NOT NULL, 
	secret_hash VARCHAR(64) NOT NULL, 
	authority TEXT NOT NULL, 
	pool TEXT, 
	local_only BOOLEAN NOT NULL, 
	uses_left INTEGER, 
	created_at FLOAT NOT NULL, 
	created_by TEXT NOT NULL, 
	expires_at FLOAT, 
	revoked_at FLOAT, 
	PRIMARY KEY (id)
);
INSERT INTO "join_tokens" VALUES('5e369d70c429','f4ca25c26fef45f61c6937848a8368686da59760631b980eeeac351b156e15ec','-----BEGIN CERTIFICATE-----
MIIBfTCCASOgAwIBAgIUPdqdPfq+9xkTo2IXEnjfIXVf5DIwCgYIKoZIzj0EAwIw
IjEgMB4GA1UEAwwXbGxtZ3ctam9pbi01ZTM2OWQ3MGM0MjkwIBcNMjAwMTAxMDAw
MDAwWhgPMjA5OTEyMzEwMDAwMDBaMCIxIDAeBgNVBAMMF2xsbWd3LWpvaW4tNWUz
NjlkNzBjNDI5MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEWkeT8aIyuBd8zOAJ
YSwMLEZXnClmzlfpI6Dhg3hDIDtgLU7GJNtuSCTpCfTvvJR0L6vLWTec2EalaH8O
EANWaqM1MDMwEgYDVR0TAQH/BAgwBgEB/wIBADAdBgNVHQ4EFgQUb5wWeSuhlvNw
ykBKnonSxd7wUQswCgYIKoZIzj0EAwIDSAAwRQIhAPkRhTWpYqj6cjkO+tBSJEzu
g0vj7NpsqPy1BN6gzwqyAiBdUsnmqkgYpNhAIWJFVtg4zLmdv3kvg9CzXLmQgsXg
Fg==
-----END CERTIFICATE-----
',NULL,0,1,1800000000.0,'anna',1800001800.0,NULL);
CREATE TABLE learned (
	"key" VARCHAR(512) NOT NULL, 
	figures_json TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "learned" VALUES('k','{"memory_mib": 12.0}',1800000000.0);
CREATE TABLE lease (
	name VARCHAR(64) NOT NULL, 
	holder TEXT, 
	term BIGINT NOT NULL, 
	expires FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "lease" VALUES('control','server-1',1,0.0);
CREATE TABLE nodes (
	id VARCHAR(128) NOT NULL, 
	agent_uid TEXT, 
	machine_id TEXT, 
	hostname TEXT NOT NULL, 
	pool TEXT NOT NULL, 
	labels_json TEXT NOT NULL, 
	cordoned TEXT, 
	draining TEXT, 
	drain_until FLOAT, 
	fenced TEXT, 
	first_seen FLOAT NOT NULL, 
	last_seen FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "nodes" VALUES('gpu-01','uid-gpu-01','m-gpu-01','gpu-01','default','{}','new fans',NULL,NULL,NULL,1000.0,1000.0);
INSERT INTO "nodes" VALUES('gpu-02','uid-gpu-02','m-gpu-02','gpu-02','default','{}',NULL,NULL,NULL,NULL,1000.0,1000.0);
CREATE TABLE revoked_nodes (
	node VARCHAR(128) NOT NULL, 
	reason TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (node)
);
INSERT INTO "revoked_nodes" VALUES('gpu-09','stolen',1800000000.0);
CREATE TABLE usage (
	hour INTEGER NOT NULL, 
	key_id VARCHAR(32) NOT NULL, 
	model VARCHAR(255) NOT NULL, 
	requests BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	PRIMARY KEY (hour, key_id, model)
);
CREATE TABLE usage_batches (
	id VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_catalog_history_name ON catalog_history (name);
CREATE INDEX ix_events_at ON events (at);
CREATE INDEX ix_events_subject ON events (subject);
CREATE INDEX ix_usage_key ON usage (key_id, hour);
CREATE INDEX ix_usage_batches_at ON usage_batches (at);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('catalog_history',1);
INSERT INTO "sqlite_sequence" VALUES('events',1);
COMMIT;

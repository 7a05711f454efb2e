package api

// Paths of the API. Names that may hold any character travel as query values.
const (
	PathStatus      = "/v1/status"
	PathVersion     = "/v1/version"
	PathNodes       = "/v1/nodes"
	PathWorkers     = "/v1/workers"
	PathWorker      = "/v1/worker"      // ?id=
	PathUsers       = "/v1/users"       // ?after=&limit=
	PathUser        = "/v1/user"        // ?identity=
	PathCalls       = "/v1/calls"       //
	PathSubscribers = "/v1/subscribers" // ?after=&limit=
	PathSubscriber  = "/v1/subscriber"  // ?impi= ; GET, PUT (&replace=true), DELETE
	PathImport      = "/v1/import"      // POST, one NewSubscriber a line
	PathExport      = "/v1/export"      // one Subscriber a line
	PathWatch       = "/v1/watch"       // one Event a line
	PathReload      = "/v1/reload"      // POST
	PathBans        = "/v1/bans"        // GET, PUT a NewBan, DELETE ?prefix=
)

// MaxPage is the largest limit of a list of subscribers or users.
const MaxPage = 1000

// Limits of an import.
const (
	MaxImport      = 200_000  // subscribers
	MaxImportBytes = 64 << 20 // of JSON
)

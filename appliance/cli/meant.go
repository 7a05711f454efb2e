package cli

// meant answers guesses that are reasonable and wrong.
var meant = map[string]string{
	"user add":        "write bellwether subscriber add",
	"user delete":     noDeregistration,
	"user remove":     noDeregistration,
	"user kick":       noDeregistration,
	"call show":       "write bellwether call list",
	"registrations":   "write bellwether user list",
	"reg":             "write bellwether user list",
	"phone":           "write bellwether user list for who is registered, bellwether subscriber list for who may",
	"phones":          "write bellwether user list for who is registered, bellwether subscriber list for who may",
	"show":            "write bellwether status, or bellwether user show IDENTITY",
	"list":            "write bellwether user list, subscriber list, call list, worker list or node list",
	"top":             "write bellwether status --watch",
	"ui":              "write bellwether status --watch",
	"tui":             "write bellwether status --watch",
	"health":          "write bellwether status; for a program, /livez and /readyz at metrics.listen",
	"leader":          "bellwether status shows the leader",
	"failover":        laterRelease,
	"drain":           laterRelease,
	"worker add":      "write it into the configuration of its node and restart that",
	"worker remove":   "take it out of the configuration of its node and restart that",
	"worker fail":     laterRelease,
	"worker failover": laterRelease,
	"worker drain":    laterRelease,

	"add":                 "write bellwether subscriber add IMPI",
	"import":              "write bellwether subscriber import FILE.csv",
	"export":              "write bellwether subscriber export",
	"aka":                 "write bellwether subscriber add IMPI --aka",
	"sim":                 "write bellwether subscriber add IMPI --aka",
	"subscriber edit":     anewSubscriber,
	"subscriber modify":   anewSubscriber,
	"subscriber change":   anewSubscriber,
	"subscriber passwd":   anewSubscriber,
	"subscriber password": anewSubscriber,

	"token":          "write bellwether cluster token NODE",
	"join":           "write bellwether cluster join - on the new machine",
	"renew":          "write bellwether cluster renew",
	"issue":          "write bellwether cluster issue NODE",
	"cert":           aboutCertificates,
	"certs":          aboutCertificates,
	"certificate":    aboutCertificates,
	"certificates":   aboutCertificates,
	"ca":             "the certificate authority is in the folder ca of the first node's data_dir; bellwether cluster init makes it",
	"init":           "write bellwether cluster init",
	"cluster create": "write bellwether cluster init",
	"cluster add":    "list the node in cluster.controllers of every file, then write bellwether cluster token NODE",
	"cluster list":   "write bellwether node list",
	"cluster show":   "write bellwether status",
	"cluster remove": fixedMembers,
	"cluster leave":  fixedMembers,
	"node remove":    fixedMembers,
	"node delete":    fixedMembers,
	"node add":       "list it in cluster.controllers of every file, then write bellwether cluster token NODE",
	"node show":      "write bellwether node list",
	"members":        "write bellwether node list",

	"cluster members": "write bellwether node list",
	"backup":          "copy data_dir/ca of the first node; bellwether subscriber export prints the subscribers, without secrets",

	"ban show":       "write bellwether ban list",
	"ban allow":      "write bellwether ban add --allow ADDRESS",
	"unban":          "write bellwether ban remove ADDRESS",
	"allow":          "write bellwether ban add --allow ADDRESS",
	"deny":           "write bellwether ban add ADDRESS",
	"block":          "write bellwether ban add ADDRESS",
	"alarm":          "bellwether status shows the alarms",
	"alarms":         "bellwether status shows the alarms",
	"log":            whereLogsGo,
	"logs":           whereLogsGo,
	"check":          "write bellwether config check -c FILE",
	"config show":    "write bellwether config check -c FILE, which says what the file means",
	"start":          "write bellwether node -c FILE",
	"run":            "write bellwether node -c FILE",
	"stop":           "end bellwether node with SIGTERM, or stop its service",
	"restart":        "restart the service, or bellwether node -c FILE",
	"man":            "write bellwether help COMMAND",
	"completion ksh": "write one of bash, fish, powershell, zsh",
}

const (
	laterRelease      = "moving users away from a worker comes with a later release"
	noDeregistration  = "a registration ends when the phone says so or it expires; bellwether subscriber remove IMPI ends the subscription"
	anewSubscriber    = "write bellwether subscriber add --replace, with all identities and the password or keys"
	aboutCertificates = "bellwether cluster renew renews this node's certificate; cluster token and cluster issue certify another"
	fixedMembers      = "the members of a cluster are fixed when it begins; a lost machine joins again under its name with bellwether cluster token NODE"
	whereLogsGo       = "a node logs to standard error; as a service: journalctl -u bellwether"
)

// meantFlag answers flags that other programs have.
var meantFlag = map[string]string{
	"sim": "aka", "usim": "aka", "milenage": "aka",
	"j": "json", "f": "config", "follow": "watch",
}

package eventrouter

// Class is the kind of service an event belongs to. Lower values matter more.
type Class uint8

// The classes in the order in which they are kept under overload.
const (
	Heartbeat  Class = iota // between partners; never shed
	Dialog                  // responses, ACK, BYE, CANCEL, in-dialog requests with a valid token; never shed
	Emergency               // initial emergency requests
	ReRegister              // REGISTER of a user who is registered
	Invite                  // initial INVITE
	Register                // initial REGISTER
	Message                 // MESSAGE
	Subscribe               // SUBSCRIBE, PUBLISH
	NumClasses = iota
)

var classNames = [NumClasses]string{
	"heartbeat", "dialog", "emergency", "re-register", "invite", "register", "message", "subscribe",
}

func (c Class) String() string {
	if int(c) < NumClasses {
		return classNames[c]
	}
	return "unknown"
}

// neverShed reports whether only the hard limit may refuse the class.
func (c Class) neverShed() bool { return c <= Dialog }

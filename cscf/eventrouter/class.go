package eventrouter

// Class is the kind of service an event belongs to. Lower values matter more.
type Class uint8

// The classes, in the order in which they are kept under overload.
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

var (
	names = [NumClasses]string{
		"heartbeat", "dialog", "emergency", "re-register", "invite", "register", "message", "subscribe",
	}
	// quanta are the events a class may run in its turn.
	quanta = [NumClasses]int{32, 16, 8, 6, 4, 3, 2, 1}
	// shares are the percentages of Cap × Queue up to which a class that may
	// be shed is taken.
	shares = [NumClasses]int{Emergency: 100, ReRegister: 95, Invite: 90, Register: 80, Message: 70, Subscribe: 60}
)

func (c Class) String() string {
	if c < NumClasses {
		return names[c]
	}
	return "unknown"
}

func (c Class) neverShed() bool { return c <= Dialog }

// valid makes a class that does not exist the least important one.
func (c Class) valid() Class { return min(c, NumClasses-1) }
